"""Where loops leave messages and users take them.

A thread that receives only appends to `arrived`: one step, which needs no lock. All else is under the inbox's lock. A
loop does not take that lock while it holds its baton.

Fairness: each peer has a queue of its own, and the peers are served in turn, so a busy peer does not starve the others.
Waiters are served in the order in which they came, so a waiter for all peers does not starve a waiter for few.

Waiters reserve, then take. The inbox reserves a message *of a peer* for a waiter. The waiter takes the peer's next
message with `accept`, or gives the reservation back with `leave`. So a wait can be broken off at any moment, no message
is lost, and the messages of a peer are taken in the order in which they came. The cost of an event does not depend on
how many wait for other peers.

netq/core.py tries `take_now`, and then waits as netq/aio.py and netq/trio.py do: `enter`, `accept`, `leave`.
"""

from __future__ import annotations

import itertools
import operator
import threading
import uuid
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable

from netq.errors import Closed
from netq.io.locks import is_owned, let_go
from netq.protocol.receiver import Item
from netq.utils.stream import Stream

_WAIT = 0.05  # seconds for which a thread that puts waits for the lock: longer than a busy interpreter takes
_REMEMBERED = 4096  # closed peers for which get(peer) still raises Closed; the oldest are forgotten
_INTERRUPTED = "{}: a signal handler has interrupted this very communicator, which takes a message"
_ANY = -1  # the key of waiters that name no peer; the other keys are UUID.int
_NUMBER = operator.attrgetter("number")


class Waiter:
    """Waits for the next message of any of `peers`; without `peers`, of any peer.

    `wake` is called once, when this is `ready`: in any thread, under the inbox's lock, so it must not wait or raise.
    """

    __slots__ = ("error", "keys", "number", "reserved", "wake")

    def __init__(self, peers: tuple[uuid.UUID, ...], wake: Callable[[], object]) -> None:
        self.keys = tuple(dict.fromkeys([peer.int for peer in peers])) if peers else ()
        self.wake = wake
        self.number = 0  # its place in the order of waiters
        self.reserved: int | None = None  # the peer of which it may take a message
        self.error: Closed | None = None

    @property
    def ready(self) -> bool:
        """Whether a message is reserved for it, or none can come."""
        return self.reserved is not None or self.error is not None


class Inbox:
    """Messages that have come and have not been taken. Any thread may call any method.

    A step under the lock is not interrupted (netq/io/interrupts.py). The keys are integers: the hash of a UUID is a
    Python function.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        # Messages, from their arrival to the user. With one peer and one reader they stay in `arrived`.
        self.arrived: deque[Item] = deque()  # in the order of arrival, not yet in `queues`
        self._holds: set[object] = set()  # while there is one, `arrived` stays as it is
        self.queues: OrderedDict[int, deque[Item]] = OrderedDict()  # by peer; the first is served next
        self._turns: dict[int, int] = {}  # by peer: the number at which it was served last
        # Waiters, and the messages that are reserved for them.
        self.waiters: defaultdict[int, OrderedDict[int, Waiter]] = defaultdict(OrderedDict)  # by peer, then number
        self._numbers = itertools.count(1)
        self._reserved: defaultdict[int, set[Waiter]] = defaultdict(set)  # by peer
        self._polling: dict[object, tuple[int, ...]] = {}  # the peers that threads wait for which poll, by thread
        self.advance: Callable[[tuple[int, ...]], object] = lambda peers: None  # the Endpoint's: gives them memory
        # The peers that messages may come from, and the ones that are closed.
        self._peers: set[int] = set()  # from which messages may come
        self._one_peer = False  # there is one such peer: its messages need no queue
        self._closed_peers: OrderedDict[int, Closed] = OrderedDict()
        self._closed: Closed | None = None
        self.any_closed = False  # a peer or the inbox is closed, so `take_now` may raise Closed
        self._unreported = False  # waiters were not failed, because a held message may be for them

    # For loops. Without the baton, except `hold`.

    def hold(self) -> object:
        """Keep what arrives from users until `release` is called with the object that this returns."""
        hold = object()
        self._holds.add(hold)
        return hold

    def release(self, hold: object) -> None:
        """End a `hold`."""
        self._holds.discard(hold)
        # Waiters may have missed their Closed meanwhile: with a held message in `arrived` it was not known yet whether
        # that message was for them (`_closed_error`).
        with self.lock:
            self._serve(self._sort())
            if self._unreported and not self._holds:
                self._unreported = False
                self._fail_waiters(*self.waiters)

    def serve_waiters(self) -> bool:
        """Serve the waiters with what has arrived; return whether any was served.

        In a signal handler that interrupts a thread in the inbox, this leaves the work to that thread.
        """
        if not (self.arrived and self.waiters) or is_owned(self.lock):
            return False
        # For a moment only: the collector may run a finalizer on top of the lock's holder that waits for a lock of this
        # thread, such as that of another inbox. A waiter that is not served here looks again within a second.
        try:
            return self.lock.acquire(timeout=_WAIT) and self._serve(self._sort())
        finally:
            let_go(self.lock)

    def expect(self, peer: uuid.UUID) -> None:
        """Expect messages of a peer, for the first time or again."""
        with self.lock:
            self._closed_peers.pop(peer.int, None)
            self._peers.add(peer.int)
            self._one_peer = len(self._peers) == 1

    def awaits(self, peer: uuid.UUID) -> bool:
        """Return whether a `get` that names this peer waits. Without the lock, so a loop may hold its baton."""
        return peer.int in self.waiters or any(peer.int in peers for peers in list(self._polling.values()))

    def awaited(self) -> set[tuple[int, ...]]:
        """Return the peers of each `get` that waits and names some."""
        with self.lock:
            waiters = [waiter.keys for line in self.waiters.values() for waiter in line.values() if waiter.keys]
        return {*waiters, *list(self._polling.values())}

    def finish(self, peer: uuid.UUID, error: Closed) -> None:
        """Expect no more messages of a peer: waiters for it alone get `error` after its last message."""
        # What has arrived is reserved first: Closed comes after the last message.
        with self.lock:
            self._serve(self._sort())
            self._peers.discard(peer.int)
            self._one_peer = len(self._peers) == 1
            self._closed_peers[peer.int] = error
            self.any_closed = True
            if len(self._closed_peers) > _REMEMBERED:
                self._closed_peers.popitem(last=False)
            self._fail_waiters(peer.int)

    def discard(self, peer: uuid.UUID, end: Stream | None) -> None:
        """Drop the messages of a peer that have come: the user has expelled it. The ends of its sessions stay.

        So do messages that are reserved for waiters. end: of EventOptions.
        """
        with self.lock:
            self._serve(self._sort())
            queue = list(self.queues.get(peer.int, ()))
            first = len(self._reserved.get(peer.int, ()))
            dropped = [item for item in queue[first:] if item[1] is not end]
            for _, _, receiver, mark in dropped:
                receiver.taken_room = mark
            if kept := deque([*queue[:first], *(item for item in queue[first:] if item[1] is end)]):
                self.queues[peer.int] = kept
            else:
                self.queues.pop(peer.int, None)
                self._turns.pop(peer.int, None)
        for receiver in {item[2] for item in dropped}:
            receiver.request_release()

    def close(self, error: Closed) -> None:
        """Expect no more messages of any peer. Only the first call counts."""
        with self.lock:
            self._serve(self._sort())
            if self._closed is None:
                self._closed = error
                self.any_closed = True
                self._fail_waiters(*self.waiters)

    # For users.

    def take_now(self, peers: tuple[uuid.UUID, ...], *, ahead: bool = False) -> Item | None:
        """Take a message that is not for a waiter; None if there is none. Raises Closed if none can come any more.

        With `ahead` this thread has waited for longer than the waiters, and is served before them.
        """
        if is_owned(self.lock):
            raise RuntimeError(_INTERRUPTED.format("get()"))
        with self.lock:
            arrived, item = self.arrived, None
            if peers or self.waiters or self._reserved or self.queues or self._holds or not self._one_peer:
                self._sort()
                item = self._take_next(tuple([peer.int for peer in peers]), ahead)
            elif arrived:  # one peer and one reader: the message needs no queue
                item = arrived.popleft()
                item[2].taken_room = item[3]
            if item is None and (error := self._closed_error(tuple([peer.int for peer in peers]))) is not None:
                raise Closed(error.peer, error.why) from error.__cause__
        if item is not None and item[2].release_due:
            item[2].request_release()  # without the lock: it calls the loop, and takes the baton of one that has ended
        return item

    def take_ready(self, most: int) -> list[Item]:
        """Take up to `most` messages that are here, if there is no waiter: together, for less than one by one.

        In the order of arrival for each peer.
        """
        if is_owned(self.lock):
            raise RuntimeError(_INTERRUPTED.format("get_ready()"))
        found: list[Item] = []
        with self.lock:
            self._sort()
            while self.queues and not (self.waiters or self._reserved) and len(found) < most:
                peer, queue = next(iter(self.queues.items()))
                for _ in range(min(len(queue), most - len(found))):
                    found.append(item := queue.popleft())
                    item[2].taken_room = item[3]
                self._end_turn(peer)
                if not queue:
                    del self.queues[peer]
                    self._turns.pop(peer, None)
        for receiver in {item[2] for item in found}:
            if receiver.release_due:
                receiver.request_release()
        return found

    def enter(self, waiter: Waiter) -> None:
        """Serve the waiter in its turn, which may be now."""
        # First the waiters that came before this one. Then this one takes its turn, or stands behind them.
        with self.lock:
            self._serve(self._sort())
            peer = self._next_peer(waiter.keys) if self.queues else None
            if peer is None:
                waiter.error = self._closed_error(waiter.keys)
            else:
                self._reserve(waiter, peer)
            if waiter.ready:
                waiter.wake()
                return
            waiter.number = next(self._numbers)
            for place in waiter.keys or (_ANY,):
                self.waiters[place][waiter.number] = waiter
        if waiter.keys:
            self.advance(waiter.keys)

    def begin_polling(self, thread: object, peers: tuple[uuid.UUID, ...]) -> None:
        """Note for which peers a thread waits that polls, and is no waiter."""
        self._polling[thread] = keys = tuple([peer.int for peer in peers])
        self.advance(keys)

    def end_polling(self, thread: object) -> None:
        """Forget what `begin_polling` has noted; harmless if that is nothing."""
        self._polling.pop(thread, None)

    def is_ready(self, waiter: Waiter) -> bool:
        """Return whether the waiter may `accept`. Looks again: see `serve_waiters`."""
        if not waiter.ready:
            with self.lock:
                self._serve(self._sort() | set(waiter.keys or self.queues))
                self._fail_waiters(*(waiter.keys or (_ANY,)))
        return waiter.ready

    def accept(self, waiter: Waiter) -> Item:
        """Take the next message of the peer that is reserved for the waiter. Raises Closed if none can come.

        It may be an earlier message than the one that made the waiter ready, if another waiter left or is slower.
        """
        if waiter.error is not None:
            raise Closed(waiter.error.peer, waiter.error.why) from waiter.error.__cause__
        with self.lock:
            peer = waiter.reserved
            assert peer is not None
            self._give_back(waiter, peer)
            item = self._take(peer)
        if item[2].release_due:
            item[2].request_release()
        return item

    def put_back(self, item: Item) -> None:
        """Make a message that was taken the next of its peer again: the wait for it was broken off."""
        id, data, receiver, mark = item
        peer = id.int
        with self.lock:
            self._sort()
            if peer not in self.queues:
                self.queues[peer] = deque()
                self._turns[peer] = next(self._numbers)
            # Another thread may have taken later messages meanwhile. Their room is not to be taken back.
            self.queues[peer].appendleft((id, data, receiver, max(mark, receiver.taken_room)))
            self._serve({peer})

    def leave(self, waiter: Waiter) -> None:
        """Stop waiting; a message that was reserved and not accepted is the next for others. Harmless afterwards."""
        # The reservation has cost the peer its turn, and nothing was taken. So the peer is the next again: its message
        # would otherwise wait for a turn of all others, each time that a wait is broken off. Each number is below all
        # before it, so the peer whose message came back last is the first.
        with self.lock:
            ready = self._sort()
            self._remove(waiter)
            peer = waiter.reserved
            if peer is not None:
                self._give_back(waiter, peer)
                if self.queues.get(peer):
                    self.queues.move_to_end(peer, last=False)
                    self._turns[peer] = -next(self._numbers)
                ready.add(peer)
            self._serve(ready)

    def drop_reservations(self, error: Closed) -> None:
        """Fail the waiters that have a reservation: one of them was interrupted, and will never take its message."""
        with self.lock:
            for waiter in [waiter for waiters in self._reserved.values() for waiter in waiters]:
                waiter.reserved, waiter.error = None, error
            self._reserved.clear()

    # Under the lock.

    def _sort(self) -> set[int]:
        """Move what has arrived into the queues; return the peers that it came from."""
        arrived, queues = self.arrived, self.queues
        peers: set[int] = set()
        while arrived and not self._holds:
            item = arrived.popleft()
            peer = item[0].int
            queue = queues.get(peer)
            if queue is None:
                queues[peer] = deque((item,))
                self._turns[peer] = next(self._numbers)
            else:
                queue.append(item)
            peers.add(peer)
        return peers

    def _take_next(self, keys: tuple[int, ...], ahead: bool) -> Item | None:
        # A thread that calls `get` now comes behind the waiters. One that has polled was there before they came.
        if self.waiters and not ahead:
            self._serve(self.queues)
        peer = self._next_peer(keys)
        item = None if peer is None else self._take(peer)
        if self.waiters and ahead:
            self._serve(self.queues)
        return item

    def _take(self, peer: int) -> Item:
        """Take the next message of a peer that has one, and move the peer to the end of the turns."""
        queue = self.queues[peer]
        item = queue.popleft()
        item[2].taken_room = max(item[3], item[2].taken_room)  # those behind it may have been discarded
        self._end_turn(peer)
        if not queue:
            del self.queues[peer]
            self._turns.pop(peer, None)
            if self._closed or peer in self._closed_peers:
                self._fail_waiters(peer)
            if self._closed and not self.queues:
                self._fail_waiters(_ANY)
        return item

    def _end_turn(self, peer: int) -> None:
        if peer in self.queues:
            self._turns[peer] = next(self._numbers)
            self.queues.move_to_end(peer)

    def _reserve(self, waiter: Waiter, peer: int) -> None:
        waiter.reserved = peer
        self._reserved[peer].add(waiter)
        self._end_turn(peer)

    def _give_back(self, waiter: Waiter, peer: int) -> None:
        self._reserved[peer].discard(waiter)
        if not self._reserved[peer]:
            del self._reserved[peer]
        waiter.reserved = None

    def _serve(self, peers: Iterable[int]) -> bool:
        """Reserve the messages of these peers for the waiters, in the order in which those came."""
        # Only the peers of which something has come: with a thousand waiters, each for a client of its own, a message
        # looks at two of their lines, that of its peer and that of the waiters for all.
        served = False
        ready = {peer for peer in peers if self._has(peer)} if self.waiters else set()
        while ready and (waiter := self._longest_waiting(ready)) is not None:
            peer = self._next_peer(waiter.keys)
            assert peer is not None
            self._reserve(waiter, peer)
            self._remove(waiter)
            waiter.wake()
            served = True
            if not self.waiters:
                break
            ready = {peer for peer in ready if self._has(peer)}
        return served

    def _has(self, peer: int) -> bool:
        """Whether the peer has a message that is not reserved."""
        queue = self.queues.get(peer)
        return queue is not None and len(queue) > len(self._reserved.get(peer, ()))

    def _longest_waiting(self, peers: set[int]) -> Waiter | None:
        """Return the waiter that has waited longest for any of these peers, or for all."""
        lines = self.waiters
        firsts = [next(iter(lines[place].values())) for place in (*peers, _ANY) if place in lines]
        return firsts[0] if len(firsts) == 1 else min(firsts, key=_NUMBER, default=None)

    def _next_peer(self, keys: tuple[int, ...]) -> int | None:
        """Return the peer whose turn it is, of those with a message that is not reserved."""
        if not keys:
            return next(filter(self._has, self.queues), None)
        return min(filter(self._has, keys), key=lambda peer: self._turns.get(peer, 0), default=None)

    def _fail_waiters(self, *places: int) -> None:
        """Give Closed to the waiters at these keys for which nothing can come."""
        # A copy, in which each waiter is once: `_remove` changes the lines, and a waiter for two peers is in both.
        lines = [self.waiters[place] for place in places if place in self.waiters]
        for waiter in dict.fromkeys([waiter for line in lines for waiter in line.values()]):
            waiter.error = self._closed_error(waiter.keys)
            if waiter.error is not None:
                self._remove(waiter)
                waiter.wake()

    def _closed_error(self, keys: tuple[int, ...]) -> Closed | None:
        """Return the error if nothing can come. A reserved message counts, as it may be given back."""
        if not (self._closed or self._closed_peers):
            return None
        if self._holds and self.arrived:
            self._unreported = True
            return None
        over = [self._closed_peers.get(peer) for peer in keys]
        error = over[0] if over and all(over) else self._closed
        return None if error and any(self.queues.get(peer) for peer in keys or self.queues) else error

    def _remove(self, waiter: Waiter) -> None:
        for place in waiter.keys or (_ANY,):
            if place in self.waiters:
                line = self.waiters[place]
                line.pop(waiter.number, None)
                if not line:
                    del self.waiters[place]
