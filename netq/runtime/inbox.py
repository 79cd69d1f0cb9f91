"""Where loops leave messages and users take them.

Who receives appends to `arrived` and to nothing else: one step, which needs no lock. All else is under the inbox's
lock, which no loop takes while it holds its baton. Each peer has a queue of its own, and the peers are served in
turn, so that a busy one does not starve the others. Those who wait are served in the order of coming, so that one who
gets from all does not starve one who gets from few.

A Waiter is promised a message of a peer. It takes the peer's next one for good with `accept`, or gives the promise
back with `leave`: so a wait can be broken off at any moment, no message is lost, and those of a peer are taken in the
order in which they came, whoever breaks off. What an event costs does not depend on how many wait for something else.
netq/core.py tries `take_now`, then stands in line as netq/aio.py does: `enter`, `accept`, `leave`.
"""

from __future__ import annotations

import itertools
import operator
import threading
import uuid
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable

from netq.errors import Closed
from netq.protocol.receiver import Item, Receiver

_REMEMBERED = 4096  # peers that are over, of which get(peer) still knows it
_ANYBODY = -1  # where those wait who name no peer; the others wait at UUID.int
_NUMBER = operator.attrgetter("number")


class Waiter:
    """Who waits for the next message of any of `peers` (none: of anybody).

    `wake` is called once, when `served`: in any thread, under the inbox's lock, so it must neither wait nor raise.
    """

    __slots__ = ("among", "error", "number", "promised", "wake")

    def __init__(self, peers: tuple[uuid.UUID, ...], wake: Callable[[], object]) -> None:
        self.among = tuple(dict.fromkeys([peer.int for peer in peers])) if peers else ()
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

    A signal handler may raise anywhere in the main thread, within the lock too. So a message is appended where it goes
    before it is taken from where it was, and one that is there twice is given once (Receiver.consume). The keys are
    numbers because the hash of a UUID is Python, and an OrderedDict that is interrupted there is broken.
    """

    def __init__(self) -> None:
        self.arrived: deque[Item] = deque()  # in the order of coming, and not sorted yet
        self.leaving: deque[Waiter] = deque()  # those who wait no more; any thread may append
        self.taking: Receiver | None = None  # of a message that is being taken: its peer is to hear of it
        self._holds: set[object] = set()  # those for whom what has arrived is to wait
        self._peers: set[int] = set()  # from whom messages may come
        self._alone = False  # there is one of them: its messages need not be sorted
        self.lock = threading.RLock()
        self._numbers = itertools.count(1)
        self.lines: defaultdict[int, OrderedDict[int, Waiter]] = defaultdict(OrderedDict)  # who waits for each peer
        self.sorted: OrderedDict[int, deque[Item]] = OrderedDict()  # by peer; the first is the next to be served
        self._turns: dict[int, int] = {}  # when each of them was served last
        self._promised: defaultdict[int, set[Waiter]] = defaultdict(set)  # who may take one of each peer's messages
        self._over: OrderedDict[int, Closed] = OrderedDict()
        self._closed: Closed | None = None
        self.ends = False  # somebody, or all, is over: `take_now` may raise Closed
        self._untold = False  # it was not told to those who wait, as what is held may be for them

    # For the loops, without their batons but for `hold`.

    def hold(self) -> object:
        """Let nobody have what arrives from now on, until `let_go` is called with what this returns."""
        hold = object()
        self._holds.add(hold)
        return hold

    def let_go(self, hold: object) -> None:
        """See `hold`."""
        self._holds.discard(hold)
        with self.lock:
            self._serve(self._sort())
            if self._untold and not self._holds:
                self._untold = False
                self._tell(*self.lines)

    def settle(self) -> bool:
        """Serve those who wait with what has arrived; return whether somebody has been served.

        In a signal handler that interrupts who is at work here, it is left to that one.
        """
        if not (self.arrived and self.lines) or self.lock._is_owned():  # type: ignore[attr-defined]
            return False
        with self.lock:
            return self._serve(self._sort())

    def begin(self, peer: uuid.UUID) -> None:
        """Expect messages of a peer (again)."""
        with self.lock:
            self._over.pop(peer.int, None)
            self._peers.add(peer.int)
            self._alone = len(self._peers) == 1

    def finish(self, peer: uuid.UUID, error: Closed) -> None:
        """Nothing more will come from a peer: those who wait for it alone get `error` after the last message."""
        with self.lock:
            self._serve(self._sort())
            self._peers.discard(peer.int)
            self._alone = len(self._peers) == 1
            self._over[peer.int] = error
            self.ends = True
            if len(self._over) > _REMEMBERED:
                self._over.popitem(last=False)
            self._tell(peer.int)

    def close(self, error: Closed) -> None:
        """Nothing more will come from anybody. Only the first call counts."""
        with self.lock:
            self._serve(self._sort())
            if self._closed is None:
                self._closed = error
                self.ends = True
                self._tell(*self.lines)

    # For users.

    def take_now(self, peers: tuple[uuid.UUID, ...], *, ahead: bool = False) -> Item | None:
        """Take what nobody waits for, if there is any; raises Closed if nothing can come any more.

        `ahead`: this thread has waited, and for longer than those in line.
        """
        if self.lock._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError("get(): a signal handler has interrupted this very communicator, which takes a message")
        with self.lock:
            arrived, item = self.arrived, None
            if peers or self.lines or self._promised or self.sorted or self._holds or not self._alone:
                self._sort()
                item = self._take_among(tuple([peer.int for peer in peers]), ahead)
            elif arrived:  # one peer and one reader: nothing to sort
                first = arrived[0]
                self.taking = first[2]
                fresh = first[2].consume(first[3], first[4])
                arrived.popleft()
                if fresh:
                    item = first
                else:  # it had come twice
                    self._sort()
                    item = self._take_among((), ahead)
            if item is None and (error := self._hopeless(tuple([peer.int for peer in peers]))) is not None:
                raise Closed(error.peer, error.why) from error.__cause__
        if item is not None and item[2].release_due:
            item[2].request_release()
        self.taking = None
        return item

    def enter(self, waiter: Waiter) -> None:
        """Serve the waiter when it is its turn: at once if there is something for it."""
        with self.lock:
            self._serve(self._sort())
            peer = self._choice(waiter.among) if self.sorted else None
            if peer is None:
                waiter.error = self._hopeless(waiter.among)
            else:
                self._promise(waiter, peer)
            if waiter.served:
                waiter.wake()
                return
            waiter.number = next(self._numbers)
            for place in waiter.among or (_ANYBODY,):
                self.lines[place][waiter.number] = waiter

    def is_served(self, waiter: Waiter) -> bool:
        """Whether it may `accept`; in case a thread that was interrupted has not woken it."""
        if not waiter.served:
            with self.lock:
                self._serve(self._sort() | set(waiter.among or self.sorted))
                self._tell(*(waiter.among or (_ANYBODY,)))
        return waiter.served

    def accept(self, waiter: Waiter) -> Item | None:
        """Take for good the next message of the peer that was promised; raises Closed if nothing can come.

        Not the one for which it was served, if another, served for an earlier one, has left or is slower. None: it was
        there twice, and has been given already; enter again.
        """
        if waiter.error is not None:
            raise Closed(waiter.error.peer, waiter.error.why) from waiter.error.__cause__
        with self.lock:
            peer = waiter.promised
            assert peer is not None
            self._release(waiter, peer)
            item = self._take(peer)
        if item is not None and item[2].release_due:
            item[2].request_release()
        self.taking = None
        return item

    def leave(self, waiter: Waiter) -> None:
        """Wait no more; what was promised and not accepted is the next for others. Harmless afterwards.

        To append the waiter to `leaving` is enough, and cannot be interrupted: the next who comes lets it go.
        """
        self.leaving.append(waiter)
        self.let_go_of_leaving()

    def let_go_of_leaving(self) -> None:
        """Let those go who leave."""
        with self.lock:
            self._serve(self._sort())

    def interrupted(self) -> None:
        """An exception has come out of `take_now` or `accept`: let the peer hear of what was taken."""
        receiver, self.taking = self.taking, None
        if receiver is not None:
            receiver.request_release()

    # Under the lock.

    def _sort(self) -> set[int]:
        """Put what has arrived into the queues; return whose it is."""
        arrived, queues = self.arrived, self.sorted
        peers: set[int] = set()
        while self.leaving:
            self._let_go(self.leaving[0])
            self.leaving.popleft()
        while arrived and not self._holds:
            item = arrived[0]
            peer = item[0].int
            queue = queues.get(peer)
            if queue is None:
                queues[peer] = deque((item,))
                self._turns[peer] = next(self._numbers)
            else:
                queue.append(item)
            arrived.popleft()
            peers.add(peer)
        return peers

    def _let_go(self, waiter: Waiter) -> None:
        self._drop_out(waiter)
        peer = waiter.promised
        if peer is not None:
            self._release(waiter, peer)
            if self.sorted.get(peer):
                self.sorted.move_to_end(peer, last=False)
                self._turns[peer] = -next(self._numbers)
            self._serve({peer})

    def _take_among(self, among: tuple[int, ...], ahead: bool) -> Item | None:
        if self.lines and not ahead:
            self._serve(self.sorted)
        item = None
        while item is None and (peer := self._choice(among)) is not None:
            item = self._take(peer)
        if self.lines and ahead:
            self._serve(self.sorted)
        return item

    def _take(self, peer: int) -> Item | None:
        """Take the next message of a peer, and let the others be served before its next; None: there is none."""
        queue = self.sorted.get(peer)
        if queue is None:
            return None
        found = None
        while queue:
            item = queue[0]
            fresh = self._consume(item)
            queue.popleft()
            if fresh:
                found = item
                break
        self._take_turn(peer)
        if not queue:
            del self.sorted[peer]
            self._turns.pop(peer, None)
            if self._closed or peer in self._over:
                self._tell(peer)
            if self._closed and not self.sorted:
                self._tell(_ANYBODY)
        return found

    def _consume(self, item: Item) -> bool:
        """Count a message as taken, while it is still there; return False if that was done before: it is here twice."""
        self.taking = item[2]
        return item[2].consume(item[3], item[4])

    def _take_turn(self, peer: int) -> None:
        if peer in self.sorted:
            self._turns[peer] = next(self._numbers)
            self.sorted.move_to_end(peer)

    def _promise(self, waiter: Waiter, peer: int) -> None:
        waiter.promised = peer
        self._promised[peer].add(waiter)
        self._take_turn(peer)

    def _release(self, waiter: Waiter, peer: int) -> None:
        self._promised[peer].discard(waiter)
        if not self._promised[peer]:
            del self._promised[peer]
        waiter.promised = None

    def _serve(self, peers: Iterable[int]) -> bool:
        """Promise what these peers have to those who wait for it, in the order of their coming."""
        served = False
        ready = {peer for peer in peers if self._has(peer)} if self.lines else set()
        while ready and (waiter := self._first(ready)) is not None:
            peer = self._choice(waiter.among)
            assert peer is not None
            self._promise(waiter, peer)
            self._drop_out(waiter)
            waiter.wake()
            served = True
            if not self.lines:
                break
            ready = {peer for peer in ready if self._has(peer)}
        return served

    def _has(self, peer: int) -> bool:
        """Whether it has a message that nobody is promised."""
        queue = self.sorted.get(peer)
        return queue is not None and len(queue) > len(self._promised.get(peer, ()))

    def _first(self, peers: set[int]) -> Waiter | None:
        """Return who has waited longest for any of these peers, or for anybody."""
        lines = self.lines
        firsts = [next(iter(lines[place].values())) for place in (*peers, _ANYBODY) if place in lines]
        return firsts[0] if len(firsts) == 1 else min(firsts, key=_NUMBER, default=None)

    def _choice(self, among: tuple[int, ...]) -> int | None:
        """Return the peer whose turn it is, of those of whom one may take."""
        if not among:
            return next(filter(self._has, self.sorted), None)
        return min(filter(self._has, among), key=lambda peer: self._turns.get(peer, 0), default=None)

    def _tell(self, *places: int) -> None:
        """Let those who wait there wait no more, if nothing can come."""
        lines = [self.lines[place] for place in places if place in self.lines]
        for waiter in dict.fromkeys([waiter for line in lines for waiter in line.values()]):
            waiter.error = self._hopeless(waiter.among)
            if waiter.error is not None:
                self._drop_out(waiter)
                waiter.wake()

    def _hopeless(self, among: tuple[int, ...]) -> Closed | None:
        """Return why nothing can come, if so; what is promised may be given back, and is in its queue as long."""
        if not (self._closed or self._over):
            return None
        if self._holds and self.arrived:
            self._untold = True
            return None
        over = [self._over.get(peer) for peer in among]
        error = over[0] if over and all(over) else self._closed
        return None if error and any(self.sorted.get(peer) for peer in among or self.sorted) else error

    def _drop_out(self, waiter: Waiter) -> None:
        for place in waiter.among or (_ANYBODY,):
            if place in self.lines:
                line = self.lines[place]
                line.pop(waiter.number, None)
                if not line:
                    del self.lines[place]
