"""Where the loops leave messages and users take them. Holds the only lock of netq.

Each peer has a queue of its own, and the peers are served in turn, so that a busy one does not starve the others;
whoever waits is served in the order of coming, so that nobody who gets from all starves one who gets from few.
A message is given to a Waiter, who takes it for good with `accept`, or gives it back with `leave`: so a wait can
be broken off at any moment, and no message is lost. Room that is freed is reported in strides, not message by
message. `take` is for threads; netq/aio.py waits in its own way with `enter`, `accept` and `leave`.
"""

from __future__ import annotations

import functools
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
_BUSY = 0.05  # seconds in which the lock is always free again, but for an interrupted thread
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

    def settle(self) -> None:
        """Report what was not reported, and all from now on. Under the inbox's lock."""
        due, self._taken, self._stride = self._taken, 0, 0
        if due:
            self.freed(due)


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

    __slots__ = ("among", "entry", "error", "peers", "wake")

    def __init__(self, peers: tuple[uuid.UUID, ...], wake: Callable[[], object]) -> None:
        self.peers = peers
        self.among = frozenset([peer.int for peer in peers])
        self.wake = wake
        self.entry: Entry | None = None
        self.error: Closed | None = None

    @property
    def served(self) -> bool:
        """Whether there is a message for it, or nothing can come."""
        return self.entry is not None or self.error is not None


Entry = tuple[int, Item]  # numbered, so that what several give back comes in order again


class Inbox:
    """What has come and nobody has taken. Any thread may call anything.

    A signal handler may interrupt the main thread anywhere, within the lock too; it may raise there, or close the
    communicator. So a loop never waits for the lock for long: what it cannot do it leaves in `_work`, and who has had
    the lock asks for it by `call`, which runs a function in a loop. And each step that a user's thread does leaves the
    queues such that the next one mends what is half done: an entry is given before it is taken out, and only once. (The
    keys are numbers because the hash of a UUID is Python, and an OrderedDict that is interrupted there is broken.)
    """

    def __init__(self) -> None:
        self.call: Callable[[Callable[[], object]], object] = lambda function: function()
        self._lock = threading.RLock()
        self._work: deque[Callable[[], object]] = deque()  # of the loops
        self._waiting: list[Waiter] = []  # the longest waiting first
        self._queues: OrderedDict[int, deque[Entry]] = OrderedDict()  # by UUID.int; the next to serve first
        self._numbers = itertools.count()
        self._over: OrderedDict[uuid.UUID, Closed] = OrderedDict()
        self._closed: Closed | None = None

    # For the loops.

    def deliver(self, items: Iterable[Item]) -> None:
        """Leave messages, in order."""
        self._do(functools.partial(self._deliver, tuple(items)))

    def settle(self, room: Room) -> None:
        """Report what was taken and not yet reported; from now on all is, at once."""
        self._do(room.settle)

    def begin(self, peer: uuid.UUID) -> None:
        """Expect messages of a peer (again)."""
        self._do(functools.partial(self._over.pop, peer, None))

    def finish(self, peer: uuid.UUID, error: Closed) -> None:
        """Nothing more will come from a peer: whoever waits for it alone gets `error` after the last message."""
        self._do(functools.partial(self._finish, peer, error))

    def close(self, error: Closed) -> None:
        """Nothing more will come from anybody. Only the first call counts."""
        self._do(functools.partial(self._close, error))

    # For users.

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
                self._done()
            return self.accept(waiter)
        except BaseException:
            self.leave(waiter)
            raise

    def enter(self, waiter: Waiter) -> None:
        """Serve the waiter when it is its turn: at once if there is something for it."""
        with self._lock:
            self._waiting.append(waiter)
            self._serve()
        self._done()

    def accept(self, waiter: Waiter) -> Item:
        """Take for good what a served waiter was given; raises Closed if nothing can come."""
        if waiter.error is not None:
            raise Closed(waiter.error.peer, waiter.error.why) from waiter.error.__cause__
        assert waiter.entry is not None
        with self._lock:
            self._take_out(waiter.entry)
            item = waiter.entry[1]
            due = item.room.count(item.cost)
            waiter.entry = None
        self._done()
        if due:
            item.room.freed(due)
        return item

    def leave(self, waiter: Waiter) -> None:
        """Wait no more; what was given and not accepted goes back to its place. Harmless afterwards."""
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            if waiter.entry is not None:
                self._put_back(waiter.entry)
                waiter.entry = None
            self._serve()
        self._done()

    def _do(self, work: Callable[[], object]) -> None:
        self._work.append(work)
        self._catch_up()

    def _done(self) -> None:
        """The lock is free again: let a loop do what was left meanwhile."""
        if self._work:
            self.call(self._catch_up)

    def _catch_up(self) -> None:
        """Do what is to be done; in a loop's thread, which no signal interrupts."""
        while self._work and self._lock.acquire(timeout=_BUSY):
            try:
                while self._work:
                    self._work.popleft()()
                self._serve()
            finally:
                self._lock.release()

    def _deliver(self, items: tuple[Item, ...]) -> None:
        for item in items:
            queue = self._queues.get(item.peer.int)
            if queue is None:
                queue = self._queues[item.peer.int] = deque()
            queue.append((next(self._numbers), item))

    def _finish(self, peer: uuid.UUID, error: Closed) -> None:
        self._over[peer] = error
        if len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)

    def _close(self, error: Closed) -> None:
        self._closed = self._closed or error

    def _serve(self) -> None:
        """Give to those who wait what there is for them."""
        for waiter in tuple(self._waiting):
            if waiter.entry is not None:  # given by one who was interrupted then
                self._take_out(waiter.entry)
        for waiter in tuple(self._waiting):
            if not waiter.served:
                self._give(waiter)
            if waiter.served:
                self._waiting.remove(waiter)
                waiter.wake()

    def _give(self, waiter: Waiter) -> None:
        for peer, queue in self._queues.items():
            if queue and (not waiter.among or peer in waiter.among):
                waiter.entry = queue[0]
                self._take_out(waiter.entry)
                return
        waiter.error = self._hopeless(waiter.peers)

    def _take_out(self, entry: Entry) -> None:
        """Let its peer's queue be the last to be served next; harmless if it is out."""
        peer = entry[1].peer.int
        queue = self._queues.get(peer)
        if queue is None:
            return
        if queue and queue[0] is entry:
            queue.popleft()
            self._queues.move_to_end(peer)
        if not queue:
            del self._queues[peer]

    def _put_back(self, entry: Entry) -> None:
        peer = entry[1].peer.int
        queue = self._queues.get(peer)
        if queue is None:
            queue = self._queues[peer] = deque()
        if entry not in itertools.islice(queue, 1):
            place = next((place for place, (number, _) in enumerate(queue) if number > entry[0]), len(queue))
            queue.insert(place, entry)
        self._queues.move_to_end(peer, last=False)

    def _hopeless(self, peers: tuple[uuid.UUID, ...]) -> Closed | None:
        over = [self._over.get(peer) for peer in peers]
        return over[0] if over and all(over) else self._closed
