"""How large a packet is, and how much may be on its way: on a slow link little, because what is on its way is ahead of
all else, the message on another lane and the heartbeat; on a fast one much, as each packet costs. Pure.

Now and then the peer is asked (PROBE) for the acknowledgement of all that is on its way, one question at a time, and
the answer's time is taken. What it is longer than the shortest seen, packets have waited somewhere: for the link, the
broker, or a slow reader. Nobody knows how fast a new link is: it begins with small packets, one at a time, and doubles
them as long as they are answered soon.

    growing ──answered soon──► twice as large, still growing, up to the largest ──► steady: several on their way
       └─────otherwise──► steady, smaller if late
"""

from __future__ import annotations

import math
from collections import deque

LEAST = 4 * 1024  # bytes of a packet
FIRST = 16 * 1024  # of a link's first packets: 2.7 s at 6 kB/s
LATE = 1.0  # seconds of waiting above which packets shrink; below half of it they grow
PERIOD = 0.05  # seconds between two measurements
_FEWER = 4  # times smaller: the first packets, when the last link got none through
_TARGET = 1 / 4  # of LATE: what late packets shrink to
_LONGEST = 4  # of LATE: what a packet may take at the least rate that the way is known to have
_OTHER_WAY = 16  # late ones in a row: the way is not slow but another, and longer
_REMEMBERED = 4096  # clients whose last link got nothing through


class CongestionControl:
    """`size` bytes may be in a packet, `most` at last. `late` is LATE, or less where silence is noticed soon."""

    def __init__(self, most: int, first: int = FIRST, late: float = LATE) -> None:
        self.size = min(most, first)
        self._most, self._first, self._late = most, first, late
        self.growing = True  # one packet's worth is on its way, no more; it may soon be full
        self._judged = False  # at least one packet's worth has been acknowledged
        self._under_way: deque[tuple[int, int]] = deque()  # packets, and their bytes
        self._bytes = 0  # of these
        self._shortest = math.inf
        self._asked: tuple[int, int, float] | None = None  # up to which packet, bytes on their way, when
        self._in_vain = 0  # measurements of the smallest packets that were late all the same
        self._next = 0.0  # when to measure again

    @property
    def open(self) -> bool:
        """Whether more may be sent."""
        return not self.growing or self._bytes < self.size

    @property
    def largest_under_way(self) -> int:
        """Bytes of the largest packet that has not been acknowledged."""
        return max((size for _, size in self._under_way), default=0)

    @property
    def full(self) -> bool:
        """Whether nothing holds it back."""
        return self.size == self._most

    @property
    def next_first(self) -> int:
        """What the next link should begin with: less, if this one has got nothing through."""
        if self._judged:
            return FIRST
        return max(LEAST, self._first // _FEWER) if 2 * self._bytes >= self.size else self._first

    def sent(self, number: int, size: int) -> None:
        """Take note of a packet."""
        self._under_way.append((number, size))
        self._bytes += size

    def asks(self, now: float, *, stopped: bool) -> bool:
        """Return whether to ask now; then it counts as asked. `stopped`: no more can be sent before the answer."""
        if self._asked is not None or not self._under_way:
            return False
        telling = now >= self._next and (2 * self._bytes >= self.size or self._shortest == math.inf)
        if telling or stopped or not self.open:
            self._asked = self._under_way[-1][0], self._bytes, now
        return self._asked is not None

    def acked(self, number: int, now: float) -> int:
        """All up to this packet are used up. Return the bytes of the largest of them."""
        largest = 0
        while self._under_way and self._under_way[0][0] <= number:
            size = self._under_way.popleft()[1]
            self._bytes -= size
            largest = max(largest, size)
        if self._asked is not None and number >= self._asked[0]:
            (_, size, left), self._asked = self._asked, None
            self._next = now + PERIOD
            self._shortest = min(self._shortest, now - left)
            if 2 * size >= self.size:
                self._judge(now - left, size)
        return largest

    def _judge(self, seconds: float, count: int) -> None:
        """So many bytes took so many seconds."""
        waited = seconds - self._shortest
        soon = waited < self._late / 2 and 2 * self.size * seconds <= _LONGEST * self._late * count
        self._judged = True
        self._in_vain = self._in_vain + 1 if waited > self._late and self.size == LEAST else 0
        if self._in_vain == _OTHER_WAY:
            self._shortest = seconds
        elif waited > self._late:
            self.size = max(LEAST, int(self.size * max(1 / 16, _TARGET * self._late / waited)))
        elif soon:
            self.size = min(self._most, 2 * self.size)
        self.growing = self.growing and soon and not self.full


class InitialSizes:
    """What the links of clients begin with: smaller packets, if a client's last link has got nothing through."""

    def __init__(self) -> None:
        self._smaller: dict[str, int] = {}  # clients; the longest ago first

    def of(self, client: str) -> int:
        """Return the size of a client's first packets."""
        return self._smaller.get(client, FIRST)

    def ended(self, client: str, pace: CongestionControl) -> None:
        """Learn from a link that is over."""
        self._smaller.pop(client, None)
        if pace.next_first < FIRST:
            self._smaller[client] = pace.next_first
        if len(self._smaller) > _REMEMBERED:
            del self._smaller[next(iter(self._smaller))]
