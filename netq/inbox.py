"""Where the loops leave messages and user threads take them. Holds the only lock of netq.

Each peer has a queue of its own; `take` serves the peers in turn, so that a busy one does not starve the
others. Room that a taken message frees is reported in strides, not message by message.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from netq.errors import Closed
from netq.utils.stream import Stream

_LONGEST = 1.0  # seconds of one wait: a signal that comes just before it is handled after it only
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
    """Queues of messages, one a peer.

    Who waits does so on a lock of its own, outside the inbox's: so a signal handler may raise at any moment, and
    leaves nothing locked.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may close us in the middle of anything
        self._waiting: list[threading.Lock] = []
        self._queues: dict[uuid.UUID, deque[Item]] = {}  # those with messages, the next to serve first
        self._over: OrderedDict[uuid.UUID, Closed] = OrderedDict()
        self._closed: Closed | None = None

    def deliver(self, items: Iterable[Item]) -> None:
        """Leave messages, in order."""
        with self._lock:
            for item in items:
                queue = self._queues.get(item.peer)
                if queue is None:
                    queue = self._queues[item.peer] = deque()
                queue.append(item)
            self._wake()

    def take(self, *peers: uuid.UUID, timeout: float | None = None) -> Item:
        """Return the next message of any of `peers` (none: of anybody); wait for one.

        Raises TimeoutError; or, when nothing is left and nothing can come, what `finish` or `close` was given.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if (item := self._next(peers)) is not None:
                    due = item.room.count(item.cost)
                    break
                if error := self._hopeless(peers):
                    raise Closed(error.peer, error.why) from error.__cause__
                waiter = threading.Lock()
                waiter.acquire()
                self._waiting.append(waiter)
            self._wait(waiter, deadline, timeout)
        if due:
            item.room.freed(due)
        return item

    def begin(self, peer: uuid.UUID) -> None:
        """Expect messages of a peer (again)."""
        with self._lock:
            self._over.pop(peer, None)

    def finish(self, peer: uuid.UUID, error: Closed) -> None:
        """Nothing more will come from a peer: whoever waits for it alone gets `error` after the last message."""
        with self._lock:
            self._over[peer] = error
            if len(self._over) > _REMEMBERED:
                self._over.popitem(last=False)
            self._wake()

    def close(self, error: Closed) -> None:
        """Nothing more will come from anybody. Only the first call counts."""
        with self._lock:
            self._closed = self._closed or error
            self._wake()

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

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.release()

    def _wait(self, waiter: threading.Lock, deadline: float, timeout: float | None) -> None:
        left = deadline - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError(f"no message within {timeout:g} s")
            waiter.acquire(timeout=min(left, _LONGEST))
        finally:
            with self._lock:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
