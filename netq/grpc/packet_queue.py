"""Packets on their way from one thread to another, with a bound. Pure: it is told how to wake either side.

One thread gives, the other takes, and neither waits nor locks: each count has one writer. Who finds nothing to do says
so *before* it looks once more, and the other looks for that *after* it has changed something; so one of them sees
the other, and a side is woken only if it waits. (CPython's order of memory is the order of the program.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class PacketQueue:
    """A queue of packets between two threads. `give` and `full` belong to one, `take` and `taken` to the other."""

    def __init__(self, wake_taker: Callable[[], object], wake_giver: Callable[[], object]) -> None:
        self._wake_taker = wake_taker
        self._wake_giver = wake_giver
        self._packets: deque[bytes] = deque()
        self._given = self._taken = 0  # bytes
        self._hungry = True  # the taker waits
        self._blocked = False  # the giver does

    def full(self, limit: int) -> bool:
        """Return whether more than `limit` bytes are under way; if so, the giver is woken when some have been taken."""
        if self._given - self._taken <= limit:
            return False
        self._blocked = True
        return self._given - self._taken > limit

    def give(self, packet: bytes) -> None:
        """Add a packet."""
        self._packets.append(packet)
        self._given += len(packet)
        if self._hungry:
            self._hungry = False
            self._wake_taker()

    def take(self) -> bytes | None:
        """Return the next packet; None if there is none: then the taker is woken by the next. See `taken`."""
        if not self._packets:
            self._hungry = True
            if not self._packets:
                return None
        self._hungry = False
        return self._packets.popleft()

    def taken(self, size: int) -> None:
        """Say that the packet of so many bytes is dealt with: there is room for another."""
        self._taken += size
        if self._blocked:
            self._blocked = False
            self._wake_giver()
