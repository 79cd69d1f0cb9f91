"""How large a packet is, and how much may be on its way: on a slow link little, because what is on its way is ahead of
all else, the message on another lane and the heartbeat; on a fast one much, as each packet costs. Pure.

Of some packets the time to their acknowledgement is measured. What it is longer than the shortest seen, the packet and
those before it have waited somewhere: for the link, the broker, or a slow reader.
"""

from __future__ import annotations

import math
from collections import deque

LEAST = 4 * 1024  # bytes of a packet
LATE, SOON = 1.0, 0.5  # seconds of waiting above which packets shrink, below which they grow
TARGET = 0.25  # seconds that they shrink to
_OTHER_WAY = 16  # of these in a row: the way is not slow but another, and longer
PERIOD = 0.05  # seconds between two measurements


class Pace:
    """`size` bytes may be in a packet. Until one packet's worth has been measured, no more is on its way than that."""

    def __init__(self, most: int) -> None:
        self.size = self._most = most
        self.largest = 0  # bytes of a packet that has been acknowledged
        self._steady = False  # it has been measured
        self._under_way: deque[tuple[int, int]] = deque()  # packets, and their bytes
        self._bytes = 0  # of these
        self._shortest = math.inf
        self._measured: tuple[int, int, float] | None = None  # which packet, bytes up to it, when it left
        self._in_vain = 0  # measurements of the smallest packets that were late all the same
        self._next = 0.0  # when to measure again

    @property
    def open(self) -> bool:
        """Whether more may be sent."""
        return self._steady or self._bytes < self.size

    @property
    def largest_under_way(self) -> int:
        """Bytes of the largest packet that has not been acknowledged."""
        return max((size for _, size in self._under_way), default=0)

    @property
    def full(self) -> bool:
        """Whether nothing holds it back."""
        return self.size == self._most

    def sent(self, number: int, size: int, now: float) -> bool:
        """Take note of a packet; return whether to ask for its acknowledgement."""
        self._under_way.append((number, size))
        self._bytes += size
        telling = 2 * self._bytes >= self.size or self._shortest == math.inf
        if self._measured is not None or now < self._next or not telling:
            return not self.open
        self._measured = number, self._bytes, now
        return True

    def acked(self, number: int, now: float) -> None:
        """All up to this packet are used up."""
        while self._under_way and self._under_way[0][0] <= number:
            size = self._under_way.popleft()[1]
            self._bytes -= size
            self.largest = max(self.largest, size)
        if self._measured is None or number < self._measured[0]:
            return
        (_, size, left), self._measured = self._measured, None
        self._next = now + PERIOD
        self._shortest = min(self._shortest, now - left)
        if 2 * size >= self.size:
            self._judge(now - left)

    def _judge(self, seconds: float) -> None:
        waited = seconds - self._shortest
        self._in_vain = self._in_vain + 1 if waited > LATE and self.size == LEAST else 0
        if self._in_vain == _OTHER_WAY:
            self._shortest = seconds
        elif waited > LATE:
            self.size = max(LEAST, int(self.size * max(1 / 16, TARGET / waited)))
        elif waited < SOON:
            self.size = min(self._most, 2 * self.size)
        self._steady = True
