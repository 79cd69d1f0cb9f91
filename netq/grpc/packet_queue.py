"""A lock-free queue of packets with one producer thread and one consumer thread. Pure: the callers supply the wake-ups.

Each counter has one writer, so neither side locks or waits. The consumer sets its waiting flag, then checks the queue
again; the producer appends, then checks the flag. In either order one of them sees the other, so no wake-up is lost,
and a side is woken only while it waits. (CPython executes memory operations in program order.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class PacketQueue:
    """A queue of packets. The producer calls `put` and `is_full`, the consumer `take` and `processed`."""

    def __init__(self, wake_consumer: Callable[[], object], wake_producer: Callable[[], object]) -> None:
        self._wake_consumer = wake_consumer
        self._wake_producer = wake_producer
        self._packets: deque[bytes] = deque()
        self._put = self._processed = 0  # bytes
        self._consumer_waits = True
        self._producer_waits = False

    def is_full(self, limit: int) -> bool:
        """Return whether more than `limit` bytes are unprocessed. If so, `processed` wakes the producer."""
        if self._put - self._processed <= limit:
            return False
        # Once more after the flag: the consumer may have made room before it could see the flag, without a wake-up.
        self._producer_waits = True
        return self._put - self._processed > limit

    def put(self, packet: bytes) -> None:
        """Append a packet."""
        self._packets.append(packet)
        self._put += len(packet)
        if self._consumer_waits:
            self._consumer_waits = False
            self._wake_consumer()

    def take(self) -> bytes | None:
        """Return the next packet. None if there is none; then the next `put` wakes the consumer."""
        # Once more after the flag: a packet that was appended before the producer could see the flag brings no wake-up.
        if not self._packets:
            self._consumer_waits = True
            if not self._packets:
                return None
        self._consumer_waits = False
        return self._packets.popleft()

    def processed(self, size: int) -> None:
        """Report that a packet of `size` bytes was processed, which makes room for another."""
        self._processed += size
        if self._producer_waits:
            self._producer_waits = False
            self._wake_producer()
