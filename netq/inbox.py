"""Where the loops leave messages and user threads take them. Holds the only lock of netq.

Each peer has a queue of its own; `take` serves the peers in turn, so that a busy one does not starve the
others. Room that a taken message frees is reported in strides, not message by message.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from netq.errors import Closed
from netq.utils.stream import Stream

_REMEMBERED = 4096  # peers that are over, of which get(peer) still knows it


class Room:
    """What the untaken messages of one lane occupy.

    `freed(cost)` is called in the thread that takes, whenever `stride` bytes of it have been taken.
    """

    __slots__ = ("_stride", "_taken", "freed")

    def __init__(self, freed: Callable[[int], object], stride: int) -> None:
        self.freed = freed
        self._stride = stride
        self._taken = 0

    def count(self, cost: int) -> int:
        """Add what was taken; return what to report now. Under the inbox's lock."""
        self._taken += cost
        if self._taken < self._stride:
            return 0
        due, self._taken = self._taken, 0
        return due


class Item(NamedTuple):
    """A message as the loop leaves it."""

    peer: uuid.UUID
    stream: Stream
    room: Room
    cost: int


class Inbox:
    """Queues of messages, one a peer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = 0
        self._queues: dict[uuid.UUID, deque[Item]] = {}  # those with messages, the next to serve first
        self._over: OrderedDict[uuid.UUID, Closed] = OrderedDict()
        self._closed: Closed | None = None

    def deliver(self, items: Iterable[Item]) -> None:
        """Leave messages, in order."""
        with self._changed:
            for item in items:
                queue = self._queues.get(item.peer)
                if queue is None:
                    queue = self._queues[item.peer] = deque()
                queue.append(item)
            if self._waiting:
                self._changed.notify_all()

    def take(self, *peers: uuid.UUID, timeout: float | None = None) -> Item:
        """Return the next message of any of `peers` (none: of anybody); wait for one.

        Raises TimeoutError; or, when nothing is left and nothing can come, what `finish` or `close` was given.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while (item := self._next(peers)) is None:
                if error := self._hopeless(peers):
                    raise Closed(error.peer, error.why) from error.__cause__
                self._wait(deadline, timeout)
            due = item.room.count(item.cost)
        if due:
            item.room.freed(due)
        return item

    def begin(self, peer: uuid.UUID) -> None:
        """Expect messages of a peer (again)."""
        with self._changed:
            self._over.pop(peer, None)

    def finish(self, peer: uuid.UUID, error: Closed) -> None:
        """Nothing more will come from a peer: whoever waits for it alone gets `error` after the last message."""
        with self._changed:
            self._over[peer] = error
            if len(self._over) > _REMEMBERED:
                self._over.popitem(last=False)
            self._changed.notify_all()

    def close(self, error: Closed) -> None:
        """Nothing more will come from anybody. Only the first call counts."""
        with self._changed:
            self._closed = self._closed or error
            self._changed.notify_all()

    def _next(self, peers: tuple[uuid.UUID, ...]) -> Item | None:
        for peer in peers or self._queues:
            queue = self._queues.pop(peer, None)
            if queue:
                item = queue.popleft()
                if queue:
                    self._queues[peer] = queue  # again, behind the others
                return item
        return None

    def _hopeless(self, peers: tuple[uuid.UUID, ...]) -> Closed | None:
        over = [self._over.get(peer) for peer in peers]
        return over[0] if over and all(over) else self._closed

    def _wait(self, deadline: float | None, timeout: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError(f"no message within {timeout:g} s")
        self._waiting += 1
        try:
            self._changed.wait(left)
        finally:
            self._waiting -= 1
