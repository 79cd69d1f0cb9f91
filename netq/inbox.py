"""Where the loops leave messages and users take them. Holds the only lock of netq.

Each peer has a queue of its own, and the peers are served in turn, so that a busy one does not starve the others;
whoever waits is served in the order of coming, so that nobody who gets from all starves one who gets from few.
A Waiter is promised a message of a peer. It takes the peer's next one for good with `accept`, or gives the promise
back with `leave`: so a wait can be broken off at any moment, no message is lost, and those of a peer are taken in the
order in which they came, whoever breaks off. What an event costs does not depend on how many wait for something else.
Room that is freed is reported in strides, not message by message. `take` is for threads; netq/aio.py waits in its own
way with `enter`, `accept` and `leave`.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import threading
import time
import uuid
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable

from netq.errors import Closed
from netq.room import Item, Room

_LONGEST = 1.0  # seconds of one wait: a signal that comes just before it is handled after it only
_BUSY = 0.05  # seconds in which the lock is always free again, but for an interrupted thread
_REMEMBERED = 4096  # peers that are over, of which get(peer) still knows it
_ANYBODY = -1  # where those wait who name no peer; the others wait at UUID.int
_NUMBER = operator.attrgetter("number")


class Waiter:
    """Who waits for the next message of any of `peers` (none: of anybody).

    `wake` is called once (twice if a signal handler raises just then), when `served`: in any thread, under the inbox's
    lock, so it must neither wait nor raise.
    """

    __slots__ = ("among", "error", "number", "promised", "wake")

    def __init__(self, peers: tuple[uuid.UUID, ...], wake: Callable[[], object]) -> None:
        self.among = tuple(dict.fromkeys([peer.int for peer in peers]))
        self.wake = wake
        self.number = 0  # of its coming
        self.promised: int | None = None  # the peer of whom it may take a message
        self.error: Closed | None = None

    @property
    def served(self) -> bool:
        """Whether there is a message for it, or nothing can come."""
        return self.promised is not None or self.error is not None


class Inbox:
    """What has come and nobody has taken. Any thread may call anything.

    A signal handler may interrupt the main thread anywhere, within the lock too; it may raise there, or close the
    communicator. So a loop never waits for the lock for long: what it cannot do it leaves in `_work`, and who has had
    the lock asks for it by `call`, which runs a function in a loop. And a step that a user's thread does for others is
    noted in `_begun` until it is done: whoever comes next does again what is half done, which is harmless. (The keys
    are numbers because the hash of a UUID is Python, and an OrderedDict that is interrupted there is broken.)
    """

    def __init__(self) -> None:
        self.call: Callable[[Callable[[], object]], object] = lambda function: function()
        self._lock = threading.RLock()
        self._work: deque[Callable[[], object]] = deque()  # of the loops
        self._begun: dict[Waiter, Callable[[Waiter], None]] = {}
        self._leaving: deque[Waiter] = deque()  # those who wait no more, and whom the others do not know of yet
        self._uncounted: int | None = None  # a peer of whom something is taken, and its turn not yet
        self._served = 0  # those who had to wait, so far
        self._numbers = itertools.count(1)
        self._lines: defaultdict[int, OrderedDict[int, Waiter]] = defaultdict(OrderedDict)  # who waits for each peer
        self._queues: defaultdict[int, deque[Item]] = defaultdict(deque)  # by peer; none is left that is empty
        self._promised: defaultdict[int, set[Waiter]] = defaultdict(set)  # by peer; never more than it has here
        self._ready: OrderedDict[int, int] = OrderedDict()  # the peers that have what nobody is promised; their turns
        self._over: OrderedDict[int, Closed] = OrderedDict()
        self._closed: Closed | None = None

    # For the loops.

    def deliver(self, items: Iterable[Item]) -> bool:
        """Leave messages, in order; return whether somebody who waited has been served."""
        served = self._served
        self._do(functools.partial(self._deliver, tuple(items)))
        return self._served != served

    def settle(self, room: Room) -> None:
        """Report what was taken and not yet reported; from now on all is, at once."""
        self._do(room.settle)

    def begin(self, peer: uuid.UUID) -> None:
        """Expect messages of a peer (again)."""
        self._do(functools.partial(self._over.pop, peer.int, None))

    def finish(self, peer: uuid.UUID, error: Closed) -> None:
        """Nothing more will come from a peer: whoever waits for it alone gets `error` after the last message."""
        self._do(functools.partial(self._finish, peer.int, error))

    def close(self, error: Closed) -> None:
        """Nothing more will come from anybody. Only the first call counts."""
        self._do(functools.partial(self._close, error))

    # For users.

    def take(self, *peers: uuid.UUID, timeout: float | None = None) -> Item:
        """Return the next message of any of `peers` (none: of anybody); wait for one.

        Raises TimeoutError; or, when nothing is left and nothing can come, what `finish` or `close` was given.
        """
        if (item := self._take_now(peers)) is not None:
            return item
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        served = threading.Lock()
        served.acquire()
        waiter = Waiter(peers, functools.partial(_release, served))
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
            self._leaving.append(waiter)  # at once: a signal handler cannot come between, and keep it in line for ever
            self._let_leave()
            raise

    def _take_now(self, peers: tuple[uuid.UUID, ...]) -> Item | None:
        """Take what nobody waits for, if there is any: without a Waiter, for this is what most calls find."""
        if not self._ready:
            return None
        item, due = None, 0
        try:
            with self._lock:
                self._mend()
                peer = self._choice(tuple([peer.int for peer in peers]))
                if peer is not None:
                    queue = self._queues[peer]
                    self._uncounted = peer
                    item = queue[0]
                    del queue[0]
                    due = item.room.count(item.cost)
                    self._count_again()
        finally:
            self._give_back(item, due)
        return item

    def _give_back(self, item: Item | None, due: int) -> None:
        """Report the room of what is taken, also if a signal handler has raised, and had the lock for long before."""
        if item is not None and due:
            item.room.freed(due)
        self._done()

    def enter(self, waiter: Waiter) -> None:
        """Serve the waiter when it is its turn: at once if there is something for it."""
        with self._lock:
            self._mend()
            waiter.promised = self._choice(waiter.among)
            waiter.error = None if waiter.promised is not None else self._hopeless(waiter.among)
            if waiter.promised is None and waiter.error is None:
                self._line_up(waiter)
            else:
                self._satisfy(waiter)
        self._done()

    def accept(self, waiter: Waiter) -> Item:
        """Take for good the next message of the peer that was promised; raises Closed if nothing can come.

        Not the one for which it was served, if another, served for an earlier one, has left or is slower.
        """
        if waiter.error is not None:
            raise Closed(waiter.error.peer, waiter.error.why) from waiter.error.__cause__
        item, due = None, 0
        try:
            with self._lock:
                self._mend()
                assert waiter.promised is not None
                queue = self._queues[waiter.promised]
                item = queue[0]
                del queue[0]
                due = item.room.count(item.cost)
                self._promised[waiter.promised].discard(waiter)
                self._clear(waiter.promised)
                waiter.promised = None
        finally:
            self._give_back(item, due)
        return item

    def leave(self, waiter: Waiter) -> None:
        """Wait no more; what was promised and not accepted is the next for others. Harmless afterwards."""
        self._leaving.append(waiter)
        self._let_leave()

    def _let_leave(self) -> None:
        with self._lock:
            self._mend()
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
                self._mend()
                while self._work:
                    self._work.popleft()()
            finally:
                self._lock.release()

    # Under the lock.

    def _deliver(self, items: tuple[Item, ...]) -> None:
        for item in items:
            peer = item.peer.int
            self._queues[peer].append(item)
            if peer not in self._ready:
                self._ready[peer] = next(self._numbers)
        if self._lines:
            self._serve({item.peer.int for item in items})

    def _finish(self, peer: int, error: Closed) -> None:
        self._over[peer] = error
        if len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
        self._tell(peer)

    def _close(self, error: Closed) -> None:
        if self._closed is None:
            self._closed = error
            self._tell(*self._lines)

    def _carry_out(self, step: Callable[[Waiter], None], waiter: Waiter) -> None:
        self._begun[waiter] = step
        step(waiter)
        self._begun.pop(waiter, None)

    def _mend(self) -> None:
        """Do again what somebody who was interrupted had begun, the last first, which is a part of those before; then
        let go of those who leave.
        """
        if self._uncounted is not None:
            self._count_again()
        while self._begun:
            waiter, step = next(reversed(self._begun.items()))
            step(waiter)
            self._begun.pop(waiter, None)
        while self._leaving:
            waiter = self._leaving[0]
            self._let_go(waiter)
            if self._leaving and self._leaving[0] is waiter:  # no signal handler has done it meanwhile
                self._leaving.popleft()

    def _count_again(self) -> None:
        """Give the next turn to others, now that something of a peer is taken."""
        if self._uncounted is not None:
            self._take_turn(self._uncounted)
            self._clear(self._uncounted)
            self._uncounted = None

    def _satisfy(self, waiter: Waiter) -> None:
        """Let the waiter know what it is promised, and nobody else have it."""
        if waiter.promised is not None:
            self._promised[waiter.promised].add(waiter)
            self._take_turn(waiter.promised)
        if waiter.number:
            self._drop_out(waiter)
            self._served += 1
        waiter.wake()

    def _let_go(self, waiter: Waiter) -> None:
        """Let others have what the waiter is promised."""
        self._drop_out(waiter)
        if waiter.promised is not None:
            self._promised[waiter.promised].discard(waiter)
            self._take_turn(waiter.promised, last=False)
            self._serve({waiter.promised})
            self._clear(waiter.promised)
            waiter.promised = None

    def _serve(self, peers: set[int]) -> None:
        """Promise what these peers have to those who wait for it, in the order of their coming."""
        while self._ready and (ready := self._ready.keys() & peers) and (waiter := self._first(ready)):
            waiter.promised = self._choice(waiter.among)
            self._carry_out(self._satisfy, waiter)

    def _first(self, peers: set[int]) -> Waiter | None:
        """Return who has waited longest for any of these peers, or for anybody."""
        firsts = [next(iter(self._lines[place].values())) for place in (*peers, _ANYBODY) if place in self._lines]
        return min(firsts, key=_NUMBER, default=None)

    def _choice(self, among: tuple[int, ...]) -> int | None:
        """Return the peer whose turn it is, of those of whom one may take."""
        if not among:
            return next(iter(self._ready), None)
        return min(filter(self._ready.__contains__, among), key=self._ready.__getitem__, default=None)

    def _take_turn(self, peer: int, *, last: bool = True) -> None:
        """Let the peer be the last of those to serve, or the next; none of them if all it has is promised."""
        if len(self._queues[peer]) > len(self._promised[peer]):
            turn = next(self._numbers)
            self._ready[peer] = turn if last else -turn
            self._ready.move_to_end(peer, last)
        else:
            self._ready.pop(peer, None)

    def _clear(self, peer: int) -> None:
        """Forget a queue that is empty: nothing of it can come back any more to those who wait."""
        if self._queues[peer]:
            return
        del self._queues[peer]
        self._promised.pop(peer, None)
        if self._closed or peer in self._over:
            self._tell(peer)
        if self._closed and not self._queues:
            self._tell(_ANYBODY)

    def _tell(self, *places: int) -> None:
        """Let those who wait there wait no more, if nothing can come."""
        lines = [self._lines[place] for place in places if place in self._lines]
        for waiter in dict.fromkeys([waiter for line in lines for waiter in line.values()]):
            waiter.error = waiter.error or self._hopeless(waiter.among)
            if waiter.error is not None:
                self._carry_out(self._satisfy, waiter)

    def _hopeless(self, among: tuple[int, ...]) -> Closed | None:
        """Return why nothing can come, if so; what is promised may be given back, and is in its queue as long."""
        if not (self._closed or self._over):
            return None
        over = [self._over.get(peer) for peer in among]
        error = over[0] if over and all(over) else self._closed
        return None if error and any(peer in self._queues for peer in among or self._queues) else error

    def _line_up(self, waiter: Waiter) -> None:
        waiter.number = next(self._numbers)
        for place in waiter.among or (_ANYBODY,):
            self._lines[place][waiter.number] = waiter

    def _drop_out(self, waiter: Waiter) -> None:
        for place in waiter.among or (_ANYBODY,):
            line = self._lines[place]
            line.pop(waiter.number, None)
            if not line:
                del self._lines[place]


def _release(lock: threading.Lock) -> None:
    if lock.locked():  # else it was woken before
        lock.release()
