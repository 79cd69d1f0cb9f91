"""Where the loops leave messages and users take them. Holds the only lock of netq.

Each peer has a queue of its own, and the peers are served in turn, so that a busy one does not starve the others;
whoever waits is served in the order of coming, so that nobody who gets from all starves one who gets from few.
A message is given to a Waiter, who takes it for good with `accept`, or gives it back with `leave`: so a wait can
be broken off at any moment, and no message is lost. Room that is freed is reported in strides, not message by
message. `take` is for threads; netq/aio.py waits in its own way with `enter`, `accept` and `leave`.
"""

from __future__ import annotations

import itertools
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

    def settle(self) -> int:
        """Return what was not reported, and report all from now on. Under the inbox's lock."""
        due, self._taken, self._stride = self._taken, 0, 0
        return due


class Item(NamedTuple):
    """A message here: whose, what, and the room that it occupies."""

    peer: uuid.UUID
    stream: Stream
    room: Room
    cost: int


class Waiter:
    """Who waits for the next message of any of `peers` (none: of anybody).

    `wake` is called once, when `served`: in any thread, under the inbox's lock, so it must neither wait nor raise.
    """

    __slots__ = ("among", "error", "item", "number", "peers", "wake")

    def __init__(self, peers: tuple[uuid.UUID, ...], wake: Callable[[], object]) -> None:
        self.peers = peers
        self.among = frozenset(peers)
        self.wake = wake
        self.item: Item | None = None
        self.number = 0  # of the item
        self.error: Closed | None = None

    @property
    def served(self) -> bool:
        """Whether there is a message for it, or nothing can come."""
        return self.item is not None or self.error is not None


class Inbox:
    """What has come and nobody has taken. Any thread may call anything."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may close us in the middle of anything
        self._waiting: list[Waiter] = []  # the longest waiting first
        self._queues: dict[uuid.UUID, deque[tuple[int, Item]]] = {}  # those with messages, the next to serve first
        self._numbers = itertools.count()  # so that what several give back comes in order again
        self._over: OrderedDict[uuid.UUID, Closed] = OrderedDict()
        self._closed: Closed | None = None

    def deliver(self, items: Iterable[Item]) -> None:
        """Leave messages, in order."""
        with self._lock:
            for item in items:
                queue = self._queues.get(item.peer)
                if queue is None:
                    queue = self._queues[item.peer] = deque()
                queue.append((next(self._numbers), item))
            self._serve()

    def take(self, *peers: uuid.UUID, timeout: float | None = None) -> Item:
        """Return the next message of any of `peers` (none: of anybody); wait for one.

        Raises TimeoutError; or, when nothing is left and nothing can come, what `finish` or `close` was given.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        served = threading.Lock()
        served.acquire()
        waiter = Waiter(peers, served.release)
        try:
            self.enter(waiter)
            while not waiter.served:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no message within {timeout:g} s")
                served.acquire(timeout=min(left, _LONGEST))
            return self.accept(waiter)
        except BaseException:
            self.leave(waiter)
            raise

    def enter(self, waiter: Waiter) -> None:
        """Serve the waiter when it is its turn: at once if there is something for it."""
        with self._lock:
            self._waiting.append(waiter)
            self._serve()

    def accept(self, waiter: Waiter) -> Item:
        """Take for good what a served waiter was given; raises Closed if nothing can come."""
        if waiter.error is not None:
            raise Closed(waiter.error.peer, waiter.error.why) from waiter.error.__cause__
        assert waiter.item is not None
        with self._lock:
            item, waiter.item = waiter.item, None
            due = item.room.count(item.cost)
        if due:
            item.room.freed(due)
        return item

    def leave(self, waiter: Waiter) -> None:
        """Wait no more; what was given and not accepted goes back to its place. Harmless afterwards."""
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            item, waiter.item = waiter.item, None
            if item is not None:
                queue = self._queues.pop(item.peer, None) or deque()
                place = next((place for place, (number, _) in enumerate(queue) if number > waiter.number), len(queue))
                queue.insert(place, (waiter.number, item))
                self._queues = {item.peer: queue, **self._queues}
                self._serve()

    def settle(self, room: Room) -> int:
        """Return what was taken and not yet reported; from now on all is, at once."""
        with self._lock:
            return room.settle()

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
            self._serve()

    def close(self, error: Closed) -> None:
        """Nothing more will come from anybody. Only the first call counts."""
        with self._lock:
            self._closed = self._closed or error
            self._serve()

    def _serve(self) -> None:
        """Give to those who wait what there is for them."""
        for waiter in tuple(self._waiting):
            if not waiter.served:
                self._give(waiter)
            if waiter.served:
                self._waiting.remove(waiter)
                waiter.wake()

    def _give(self, waiter: Waiter) -> None:
        for peer in self._queues:
            if not waiter.among or peer in waiter.among:
                break
        else:
            waiter.error = self._hopeless(waiter.peers)
            return
        queue = self._queues.pop(peer)
        waiter.number, waiter.item = queue.popleft()
        if queue:
            self._queues[peer] = queue  # again, behind the others

    def _hopeless(self, peers: tuple[uuid.UUID, ...]) -> Closed | None:
        over = [self._over.get(peer) for peer in peers]
        return over[0] if over and all(over) else self._closed
