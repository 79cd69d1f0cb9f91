"""Memory that a user lends while it waits in `get(into=…)`, and the message that lies in it.

No socket, clock or thread. LentStream has a lock, because users' threads read it.

The loop's Memory has the destination meanwhile. The first large message that begins then is received into it, if it
fits (netq/protocol/receiver.py). Any other message, and the end of the wait, take the memory back:

    offered ──a message begins──► in use ──it is whole──► the user takes it: it lies where it belongs
       └──────────recall────────────┴────────recall────────► copied out; the rest is received elsewhere
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from netq.buffers import LARGE, aligned
from netq.utils.stream import Stream


class LentStream(Stream):
    """A message in memory that a user has lent. A reader gets a copy, unless it is that user."""

    __slots__ = ("_lent", "_lock")

    def __init__(self, parts: list[memoryview]) -> None:
        # `buffers` is not set, so the first reader comes to `__getattr__`. It may be a thread that has taken this
        # message while the user takes the memory back, or a signal handler on top of that: the lock is reentrant.
        self.nbytes, self._stops, self._position = sum(map(len, parts)), None, 0
        self._lent, self._lock = parts, threading.RLock()

    def __getattr__(self, name: str) -> Any:
        if name != "buffers":
            raise AttributeError(name)
        self.copy_out()
        return self.buffers

    def accept(self) -> None:
        """Let the user that has lent the memory read the message there."""
        if self._lent:
            self.buffers = self._lent

    def copy_out(self) -> None:
        """Copy the message into memory of its own. Harmless if it is repeated."""
        with self._lock:
            if self._lent:
                own = aligned(self.nbytes)
                Stream.of(*self._lent).readinto(own)
                self.buffers, self._lent, self._stops = [own], [], None


class Destination:
    """Memory that a user lends to the first large message of one of `peers`; without `peers`, of any peer.

    plan: takes the size of a message; returns where its bytes belong, piece by piece. Each piece is full before the
    next is asked for. Ends early if the message does not fit.
    """

    def __init__(self, plan: Callable[[int], Iterator[memoryview]], peers: tuple[uuid.UUID, ...]) -> None:
        self._plan = plan
        self._peers = peers
        self.peer: uuid.UUID | None = None  # whose message has it
        self.pieces: Iterator[memoryview] = iter(())  # of that message
        self.stream: LentStream | None = None  # that message, once it is whole

    def suits(self, peer: uuid.UUID | None, size: int) -> bool:
        """Return whether a message that begins may have the memory. A copy of a smaller one costs next to nothing."""
        return size >= LARGE and (not self._peers or peer in self._peers)

    def begin(self, peer: uuid.UUID | None, size: int) -> None:
        """Plan for a message."""
        self.peer, self.pieces = peer, self._plan(size)

    def whole(self, parts: list[memoryview]) -> LentStream:
        """Return the message, which is whole."""
        self.stream = LentStream(parts)
        return self.stream
