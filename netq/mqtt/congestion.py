"""Congestion control of one link: the size of its packets, and how many bytes may be in flight. Pure.

On a slow link little must be in flight, because it delays everything behind it: messages on other lanes, and the
heartbeat. On a fast link packets are large, because each packet has a cost.

To measure, the sender asks the peer from time to time to acknowledge everything in flight (PROBE), one probe at a time.
The time of the answer beyond the shortest round trip is queueing delay: in the network, the broker or a slow reader.
The rate of a new link is unknown, so it starts with small packets, one at a time, and doubles them while the answers
are fast.

    growing ──fast answer──► size doubled, still growing, up to the maximum ──► steady: several packets in flight
       └─────otherwise──► steady; smaller if the answer was late
"""

from __future__ import annotations

import math
from collections import deque

MIN_SIZE = 4 * 1024  # bytes of a packet
INITIAL_SIZE = 16 * 1024  # bytes of a link's first packets: 2.7 s at 6 kB/s
MAX_WAIT = 1.0  # seconds of queueing delay above which packets shrink; below half of it they grow
PERIOD = 0.05  # seconds between two measurements
_SHRINK = 4  # divisor of the first packets' size after a link on which no packet was acknowledged
_TARGET_WAIT = 1 / 4  # of MAX_WAIT: the delay to which late packets shrink
_MAX_PACKET_TIME = 4  # of MAX_WAIT: the most that a packet may take at the lowest rate that was measured
_PATH_CHANGED = 16  # late measurements in a row at MIN_SIZE: the path has a longer round trip now
_MAX_CLIENTS = 4096  # clients with a smaller first size


class CongestionControl:
    """`size` is the most bytes of a packet; it grows to `max_size`. A short heartbeat needs a shorter `max_wait`."""

    def __init__(self, max_size: int, initial_size: int = INITIAL_SIZE, max_wait: float = MAX_WAIT) -> None:
        self.size = min(max_size, initial_size)
        self._max_size, self._initial_size, self._max_wait = max_size, initial_size, max_wait
        self.growing = True  # at most one packet's worth is in flight
        self._measured = False  # at least one packet's worth has been acknowledged
        self._in_flight: deque[tuple[int, int]] = deque()  # number and bytes of each packet
        self._in_flight_bytes = 0
        self._min_round_trip = math.inf
        self._probe: tuple[int, int, float] | None = None  # last packet before the probe, bytes in flight, time
        self._late_at_minimum = 0  # late measurements in a row although the packets are smallest
        self._next_probe = 0.0  # time of the next measurement

    @property
    def open(self) -> bool:
        """Whether more may be sent."""
        return not self.growing or self._in_flight_bytes < self.size

    @property
    def largest_in_flight(self) -> int:
        """Bytes of the largest packet that has not been acknowledged."""
        return max((size for _, size in self._in_flight), default=0)

    @property
    def at_max_size(self) -> bool:
        """Whether packets have their full size."""
        return self.size == self._max_size

    @property
    def next_initial_size(self) -> int:
        """The size of the next link's first packets: smaller, if no full packet was acknowledged on this link."""
        if self._measured:
            return INITIAL_SIZE
        return (
            max(MIN_SIZE, self._initial_size // _SHRINK)
            if 2 * self._in_flight_bytes >= self.size
            else self._initial_size
        )

    def sent(self, number: int, size: int) -> None:
        """Record a packet that was sent."""
        self._in_flight.append((number, size))
        self._in_flight_bytes += size

    def should_probe(self, now: float, *, stopped: bool) -> bool:
        """Return whether to send a PROBE now, and record it as sent.

        `stopped`: nothing more can be sent before the answer, so the probe must not wait.
        """
        if self._probe is not None or not self._in_flight:
            return False
        informative = now >= self._next_probe and (
            2 * self._in_flight_bytes >= self.size or self._min_round_trip == math.inf
        )
        if informative or stopped or not self.open:
            self._probe = self._in_flight[-1][0], self._in_flight_bytes, now
        return self._probe is not None

    def acked(self, number: int, now: float) -> int:
        """Record that the peer has processed all packets up to `number`. Return the bytes of the largest of them."""
        largest = 0
        while self._in_flight and self._in_flight[0][0] <= number:
            size = self._in_flight.popleft()[1]
            self._in_flight_bytes -= size
            largest = max(largest, size)
        if self._probe is not None and number >= self._probe[0]:
            (_, size, sent_at), self._probe = self._probe, None
            self._next_probe = now + PERIOD
            self._min_round_trip = min(self._min_round_trip, now - sent_at)
            if 2 * size >= self.size:
                self._adapt(now - sent_at, size)
        return largest

    def _adapt(self, seconds: float, count: int) -> None:
        """Adapt the size: `count` bytes were acknowledged after `seconds`."""
        # What counts is the time beyond the shortest round trip: a satellite link is slow to answer, and large packets
        # do it no harm. `fast` has a second condition, because the shortest round trip of a slow link contains the time
        # that its packets take, and so hides it: the doubled packet must not take too long at the rate just measured.
        waiting = seconds - self._min_round_trip
        fast = waiting < self._max_wait / 2 and 2 * self.size * seconds <= _MAX_PACKET_TIME * self._max_wait * count
        self._measured = True
        self._late_at_minimum = self._late_at_minimum + 1 if waiting > self._max_wait and self.size == MIN_SIZE else 0
        # Packets cannot be smaller, and the answers stay late: the shortest round trip is of a path that is not in use
        # any more, as after a change of networks. Without a new one, every later measurement would count as late.
        if self._late_at_minimum == _PATH_CHANGED:
            self._min_round_trip = seconds
        elif waiting > self._max_wait:
            self.size = max(MIN_SIZE, int(self.size * max(1 / 16, _TARGET_WAIT * self._max_wait / waiting)))
        elif fast:
            self.size = min(self._max_size, 2 * self.size)
        self.growing = self.growing and fast and not self.at_max_size


class InitialSizes:
    """The size of the first packets of each client's next link: smaller, if its last link delivered nothing."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}  # by client, the oldest first

    def get(self, client: str) -> int:
        """Return the size of a client's first packets."""
        return self._sizes.get(client, INITIAL_SIZE)

    def record(self, client: str, congestion: CongestionControl) -> None:
        """Record the result of a link that has ended."""
        self._sizes.pop(client, None)
        if congestion.next_initial_size < INITIAL_SIZE:
            self._sizes[client] = congestion.next_initial_size
        if len(self._sizes) > _MAX_CLIENTS:
            del self._sizes[next(iter(self._sizes))]
