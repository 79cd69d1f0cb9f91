"""The communicator: what users hold, in any number of threads.

It hands work to the loops of its Endpoint (netq/runtime/endpoint.py), and takes messages from its Inbox
(netq/runtime/inbox.py). Objects are pickled and unpickled here, in the caller's thread.
"""

from __future__ import annotations

import dataclasses
import functools
import ipaddress
import math
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

from netq.errors import BufferMismatch, Closed, InvalidOption, Unreadable
from netq.io.condition import deadline_of
from netq.io.interrupts import has_broken_step, interruptible, protect, raised_by_handler, unprotect
from netq.io.locks import let_go
from netq.io.process_end import at_end, not_at_end
from netq.log import log
from netq.options import CommunicatorOptions, NetworkLocation, Purpose
from netq.protocol.destination import LentStream
from netq.protocol.receiver import Item
from netq.protocol.wire import ANY_LANE, LANES
from netq.runtime.delivery import Copy, Delivery, call_logged, gather
from netq.runtime.endpoint import Endpoint, TransportFactory
from netq.runtime.inbox import Inbox, Waiter
from netq.runtime.peer import Peer
from netq.runtime.statistics import Statistics
from netq.security.seal import sealed_id
from netq.text import describe
from netq.utils.serializer import Loader, Serializer
from netq.utils.stream import Stream
from netq.validate import check_timeout, is_function, is_number, is_whole


class _Pair(NamedTuple):
    peer: uuid.UUID
    data: Any


class Message(_Pair):
    """What `get` returns: the id of the peer, and the data that it has put, as a tuple; and the lane."""

    lane: int = 0

    def _replace(self, **changes: Any) -> Self:
        replaced = super()._replace(**changes)
        vars(replaced).update(vars(self))  # the lane
        return replaced

    __replace__ = _replace  # for copy.replace


_AT_ONCE = 1000  # peers whose figures the loop collects without serving others: some 3 ms
_message = functools.partial(tuple.__new__, Message)  # faster than Message(...)


class Communicator:
    """Moves Python objects between one server and many clients. Thread-safe; a context manager.

    The constructor never waits: a client connects when the server appears. It raises AddressError (a server's address
    is taken, or not of this machine) and SecurityError (a key or certificate cannot be used). After a fork the
    communicator is the parent's: in the child put, get and statistics raise RuntimeError, and so do futures that were
    not done. One that no one refers to is closed in the background, with a ResourceWarning.
    """

    def __init__(self, options: CommunicatorOptions | None, purpose: Purpose, transport: TransportFactory) -> None:
        if not isinstance(options, CommunicatorOptions | None):
            raise InvalidOption(f"options: a {type(options).__name__}; expected CommunicatorOptions")
        self.options = options or CommunicatorOptions()
        if self.options.seal is not None and purpose is Purpose.CLIENT:
            self.options = dataclasses.replace(self.options, id=sealed_id(self.options.seal))
        self._inbox = Inbox()
        self._endpoint = Endpoint(self.options, purpose, self._inbox, transport)
        self._home = self._endpoint.home
        self._baton = self._home.baton
        serializer = Serializer(self.options.serialization.dump, self.options.serialization.load)
        self._pack, self._load, self._loader = serializer.pack, serializer.load, serializer.loader
        if purpose is Purpose.SERVER and _is_open(self.netloc.host) and serializer.runs_code:
            log.warning(
                "%s:%s: a process that reaches this address can run code here, because messages are loaded as pickles "
                "without an allow-list; use PickleSerializer(allow=…).load, or another serialiser",
                *self.netloc,
            )
        at_end(self._endpoint.close_at_end)  # which does not refer to this: it may be collected

    @property
    def id(self) -> uuid.UUID:
        """The id of this communicator, by which its peers know it."""
        return self.options.id

    @property
    def netloc(self) -> NetworkLocation:
        """Where a server listens, with the port that the system chose for port 0; or where a client connects."""
        return self._endpoint.netloc

    @interruptible
    def put(self, data: Any, *peers: uuid.UUID, lane: int | None = 0, bounded: bool = True) -> Delivery:
        """Send `data` to each of `peers`. Without `peers` a client sends to its server, a server to all its clients.

        Never waits. Serialises once, in this call, and raises the errors of that. Buffers that travel out of band are
        not copied, so `data` must not change until the future is done. Messages on one lane arrive in order; lanes do
        not wait for one another. `lane=None` is for messages without order: each takes the lane from 8 to 15 on which
        the least waits. If a server has no clients, the future is done at once.

        `bounded=False` sends a message also where `queue_size` or `queue_bytes` is reached: for the few messages that
        control others. Your program bounds their number.

        The future is done when the peer holds the message. It fails with Closed (the peer or this communicator
        is closed, or the session was lost while the message was on its way), QueueFull or MessageTooLarge.
        """
        if type(lane) is not int or not 0 <= lane < LANES:
            lane = _checked_lane("put", lane)
        if self._baton.forked:
            self._baton.check_not_forked("put()")
        # The state is read without a lock, and each attribute once: the loop's thread may replace the peer at any
        # moment. A message for a session that ends meanwhile fails with Closed when the outbox is drained.
        try:
            packed = self._pack(data)
            if not peers and (only := self._endpoint.only) is not None and not (only.over or only.session.closing):
                delivery = Delivery(packed, lane)
                delivery.peer, delivery.guard, delivery.recall = only.session.peer, only.baton, only.recall
                if not bounded:
                    delivery.bounded = False
                only.post(delivery)
                return delivery
            targets = self._targets(peers)
            if len(targets) == 1:
                delivery = self._delivery(packed, lane, bounded, *targets[0], ())
                self._post(delivery, targets[0][1])
                return delivery
            audience = tuple([id for id, _ in targets if id is not None])
            deliveries = [self._delivery(packed, lane, bounded, id, peer, audience) for id, peer in targets]
            whole = gather(self._baton, deliveries)
            for delivery, (_, peer) in zip(deliveries, targets, strict=True):
                self._post(delivery, peer)
            self._wake_to_flush()
            return whole
        except BaseException as error:
            self._check_step(error)
            raise

    @interruptible
    def multicast(
        self,
        data: Any,
        peers: Iterable[uuid.UUID],
        *,
        lane: int | None = 0,
        failed: Callable[[uuid.UUID, Exception], object] | None = None,
    ) -> None:
        """Send `data` to each of `peers`, as `put` does, without futures, which cost more than a small message.

        `failed(peer, error)` is called for each peer that does not get it, in a thread of netq, with the error that the
        future of `put` would have. It must not wait, nor send again. Without `failed` only `close` counts these.
        """
        lane = _checked_lane("multicast", lane)
        failed = failed or _ignore
        if not callable(failed):  # and no more: is_function would cost as much as a copy
            raise TypeError(f"multicast: failed {failed!r}; expected a callable that is no coroutine function")
        if not isinstance(peers, Iterable):
            raise TypeError(f"multicast: peers {peers!r}; expected the ids of several peers, as in [message.peer]")
        self._baton.check_not_forked("multicast()")
        try:
            packed = self._pack(data)
            ids = (*peers,)  # a tuple of its own, by which transports know that it is one message
            _check_ids("multicast", ids)
            audience, table = ids if len(ids) > 1 else (), self._peers_by_id()
            for id in ids:
                peer = table.get(id)
                if peer is not None:
                    copy = Copy(packed, lane, audience)
                    copy.peer, copy.guard, copy.failed = id, peer.baton, failed
                    peer.post(copy)
                else:
                    unreachable = self._why_unreachable(id)
                    self._baton.ledger.failed(id, unreachable, looked_at=True)
                    self._baton.defer(call_logged, failed, id, unreachable)
            self._wake_to_flush()
        except BaseException as error:
            self._check_step(error)
            raise

    def expel(self, peer: uuid.UUID, reason: str, refuse_for: float = 0.0) -> None:
        """End the session with a client, which gets the reason. Never waits. Harmless if it is over.

        The client may come back, with a new session. With `refuse_for`, drop its messages that `get` has not returned,
        and refuse it for so many seconds.
        """
        reason = _checked_reason("expel", peer, reason)
        if not is_number(refuse_for, 0):
            raise TypeError(f"expel: refuse_for={refuse_for!r}; expected seconds, 0 or more")
        self._baton.check_not_forked("expel()")
        self._endpoint.expel(peer, reason, refuse_for)
        if refuse_for:  # now: its end is noted in a moment, and drops those that come until then
            self._inbox.discard(peer, self._endpoint.options.events.end)

    def pause(self, peer: uuid.UUID, reason: str) -> None:
        """Let messages of other clients pass the one that is arriving from this client. Never waits.

        For a server whose `memory` is full, and where a slow client holds a part of it. The client loses its link, gets
        the reason, and connects again. Until `resume` it may send up to `window`, and what exceeds that waits. What has
        arrived of its message is kept, unless others need the room.
        """
        reason = _checked_reason("pause", peer, reason)
        self._baton.check_not_forked("pause()")
        if (found := self._endpoint.peers.get(peer)) is not None:
            found.loop.call(found.pause, reason)

    def resume(self, peer: uuid.UUID) -> None:
        """Let a client that was paused send again, behind those that wait for room. Harmless if it was not paused."""
        _check_ids("resume", (peer,))
        self._baton.check_not_forked("resume()")
        if (found := self._endpoint.peers.get(peer)) is not None:
            found.loop.call(found.resume)

    @property
    def memory_is_full(self) -> bool:
        """Whether the rest of a message waits, because others take all of `memory`."""
        return self._endpoint.is_short

    @property
    def connected(self) -> bool:
        """Whether there is a connection to a peer, if only in its handshake. A client has one peer, its server."""
        return any(peer.link is not None for peer in self._endpoint.every_peer())

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that made this.

        Then `close`, `request_close` and `call_soon` do nothing, and what sends or receives raises RuntimeError.
        """
        return self._baton.forked

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` in a thread of netq, as events are: after what was to be called before. Never waits.

        Finalizers and signal handlers may use this for what needs a lock: the thread holds none of netq. The function
        must not wait, nor call this again each time. Its errors are logged. When the communicator has ended, it is
        called here.
        """
        if not is_function(function):
            raise TypeError(f"call_soon: function {function!r}; expected a callable that is no coroutine function")
        if self._baton.forked:
            return
        self._baton.defer(call_logged, function, *args)

    def get(self, *peers: uuid.UUID, timeout: float | None = None, into: Any = None) -> Message:
        """Wait for the next message of any of `peers`, and return it. Without `peers`, of any peer.

        `into` is memory of yours for the large buffers of the message: one writable, contiguous buffer (a numpy array,
        a bytearray), or a list of them. PickleSerializer puts the message's arrays there, in order, and they are views
        of it; BufferSerializer puts the bytes there. Raises BufferMismatch, with the message, if they do not fit.

        Raises TimeoutError after `timeout` seconds. Raises Closed when no message is left and none can come, because
        the peers or this communicator are closed. Raises Unreadable (or NotAllowed), with its `peer`, for a message
        that cannot be loaded: that message is dropped, and the next `get` returns the next one.
        """
        inbox = self._inbox
        if peers or timeout is not None or self._baton.forked:
            self._check_get(peers, timeout)
        load = None if into is None else self._loader(into)
        protect()
        try:
            item = inbox.take_now(peers) if inbox.arrived or inbox.queues else None
            if item is None:
                item = self._wait(peers, timeout) if load is None else self._wait_into(load, peers, timeout)
            return self._unpack(item, load)
        except BaseException as error:
            self._check_step(error)
            raise

    def get_ready(self, most: int = 256) -> list[Message]:
        """Return the messages that are here, up to `most`: together, for less time than one by one. Never waits.

        In order for each peer. Empty if there is none, also when none can come any more. While other threads wait in
        `get`, these get the messages. Raises Unreadable if the next message cannot be loaded, which is dropped then.
        """
        if not is_whole(most, 1):
            raise TypeError(f"get_ready: most={most!r}; expected a whole number of 1 or more")
        self._baton.check_not_forked("get_ready()")
        protect()
        found: list[Message] = []
        try:
            items = self._inbox.take_ready(most)
            try:
                for item in items:
                    found.append(self._unpack(item, taken=items))  # noqa: PERF401  # an error leaves those before it
            except Unreadable:  # the next call raises it, if this one returns others
                self._put_back(items[len(found) or 1 :])
                if not found:
                    raise
            except BaseException:  # of `load`, as sys.exit; after a signal handler `items` is empty
                self._put_back(items[: len(found)] + items[len(found) + 1 :])
                raise
        except BaseException as error:
            self._check_step(error)
            raise
        return found

    def _check_step(self, error: BaseException) -> None:
        """End the communicator if a signal handler has raised this error in the middle of a step."""
        if has_broken_step(error):
            let_go(self._inbox.lock)
            self._inbox.drop_reservations(Closed(self.id, "a signal handler has raised in the middle of a step"))
            self._baton.end_by(error)

    def _wait_into(self, load: Loader, peers: tuple[uuid.UUID, ...], timeout: float | None) -> Item:
        """Wait as `_wait` does. A large message that begins meanwhile is received where `load` wants it."""
        if load.plan is None or self._inbox.waiters:  # which get that message
            return self._wait(peers, timeout)
        destination, item = self._endpoint.lend(load.plan, peers), None
        try:
            item = self._wait(peers, timeout)
        finally:
            self._endpoint.recall(destination, None if item is None else item[1])
        return item

    def _wait(self, peers: tuple[uuid.UUID, ...], timeout: float | None) -> Item:
        """Wait for the next message: by polling, if no other thread waits, or as a waiter."""
        baton, inbox = self._baton, self._inbox
        deadline = math.inf if timeout is None else deadline_of(timeout)
        wait_lock = baton.wait_lock("get")
        try:
            if peers:
                inbox.begin_polling(wait_lock, peers)
            with wait_lock:
                # Without a wake-up: a thread that polls receives into the inbox itself, and looks there after each
                # poll. When there are waiters the loop's thread polls for all of them, and this one stands behind them.
                item = inbox.take_now(peers) if inbox.any_closed else None
                while item is None and not inbox.waiters and baton.poll(wait_lock, deadline):
                    if inbox.arrived or inbox.queues or inbox.any_closed:
                        item = inbox.take_now(peers, ahead=True)
        finally:
            if baton.parked_long or inbox.waiters:
                baton.stop_polling()
            if peers:
                inbox.end_polling(wait_lock)
        if item is None and (item := self._wait_as_waiter(peers, deadline)) is None:
            raise TimeoutError(f"no message within {timeout:g} s")
        return item

    def _wait_as_waiter(self, peers: tuple[uuid.UUID, ...], deadline: float) -> Item | None:
        # The message is taken within the predicate of the wait. So a wait that ends by its timeout or by an exception
        # has a reservation at most, which `leave` gives back.
        inbox = self._inbox
        found: list[Item] = []
        waiter = Waiter(peers, _wake_none)

        def take() -> bool:
            if inbox.is_ready(waiter):
                found.append(inbox.accept(waiter))
            return bool(found)

        def subscribe(wake: Callable[[], object]) -> None:
            waiter.wake = wake
            inbox.enter(waiter)

        self._baton.wait(take, deadline, subscribe, functools.partial(inbox.leave, waiter), "get")
        return found[0] if found else None

    def _check_get(self, peers: tuple[uuid.UUID, ...], timeout: float | None) -> None:
        """Check the arguments of `get`, here and in the fronts."""
        self._baton.check_not_forked("get()")
        _check_ids("get", peers)
        check_timeout("get", timeout)

    def _put_back(self, items: Sequence[Item]) -> None:
        """Make items that were taken the next of their peers again."""
        for item in reversed(items):
            _restore(item[1])
            self._inbox.put_back(item)

    def _unpack(self, item: Item, load: Callable[[Any], Any] | None = None, taken: list[Item] | None = None) -> Message:
        """Load an item of the inbox: the second half of `get`, here and in the fronts. `load` is of `_loader`.

        Raises Unreadable or BufferMismatch. An exception of a signal handler that ran meanwhile comes out as it is, and
        the item is the next of its peer again, with those that were `taken` with it; the list is empty then.
        """
        try:
            message = _message((item[0], _loaded(load or self._load, item[1])))
        except BaseException as error:  # the user's serialiser may raise anything
            interruption = raised_by_handler(error)
            if interruption is None and isinstance(error, KeyboardInterrupt):
                interruption = error  # Python's own handler has no frame
            if interruption is not None:
                self._put_back(taken or [item])
                if taken:
                    taken.clear()
                _raise(interruption)
            if not isinstance(error, Exception):
                raise
            if isinstance(error, Unreadable):
                error.peer = item[0]
                error.add_note(f"in a message from {item[0]}")
                raise
            if isinstance(error, BufferMismatch) and load is not None:
                _restore(item[1])
                error.peer = item[0]
                error.message = self._unpack(item)
                error.add_note(f"a message from {item[0]}, which the `message` of this error is")
                raise
            unreadable = Unreadable(f"a message from {item[0]} cannot be loaded: {describe(error)}")
            unreadable.peer = item[0]
            raise unreadable from error
        if lane := item[2].lane:
            message.lane = lane
        return message

    def close(self, timeout: float | None = None) -> int:
        """Deliver what has been put, say goodbye, and end. A server waits until its clients have disconnected.

        For a peer that is not connected and has undelivered messages it waits `linger` seconds. After `timeout` seconds
        it waits no longer. What is undelivered then fails with Closed. Returns how many messages were not delivered
        since the communicator was made, for whatever reason; a message to several peers counts for each. `get` can
        still take what came before. Closing again is harmless. So is closing in a fork: the parent goes on.
        """
        check_timeout("close", timeout)
        return self._close(timeout, kept=False)

    def _close(self, timeout: float | None, *, kept: bool) -> int:
        if self._baton.forked:
            return 0
        for loop in self._endpoint.loops:
            loop.baton.check("close")
        not_at_end(self._endpoint.close_at_end)  # now: after an interrupted close, the end of the process waits no more
        undelivered = self._endpoint.close(timeout, kept=kept)
        unprotect()  # the next step of another communicator protects again
        return undelivered

    def request_close(self) -> None:
        """Begin to close, and return at once: for signal handlers, events and callbacks of futures.

        From then on `put` fails with Closed. `get` raises Closed when everything has ended. Then call `close`, which
        waits for that.
        """
        if not self._baton.forked:
            self._home.call(self._endpoint.begin_to_close, None)

    def statistics(self, *peers: uuid.UUID) -> dict[uuid.UUID, Statistics]:
        """Return the figures of `peers` that have a session; without `peers`, of each that has one."""
        _check_ids("statistics", peers)
        for loop in self._endpoint.loops:
            loop.baton.check("statistics")
        if peers:
            by_id = self._peers_by_id()
            wanted = [peer for id in dict.fromkeys(peers) if (peer := by_id.get(id)) is not None]
        else:
            wanted = [peer for peer in self._endpoint.every_peer() if peer.id is not None]
        figures: dict[Peer, Statistics] = {}
        for loop in self._endpoint.loops:
            own = [peer for peer in wanted if peer.loop is loop]
            for first in range(0, len(own), _AT_ONCE):
                figures |= loop.ask(_figures, own[first : first + _AT_ONCE])
        return {peer.id: figures[peer] for peer in wanted if peer.id is not None and not peer.over}

    def absences(self, *peers: uuid.UUID) -> dict[uuid.UUID, float]:
        """Return for how many seconds each of `peers` with a session has had no connection: 0 while it is connected.

        Without `peers`, of each that has a session. Never waits. With thousands of clients this costs a small part of
        what `statistics` costs.
        """
        _check_ids("absences", peers)
        self._baton.check_not_forked("absences()")
        if peers:
            by_id = self._peers_by_id()
            found = [peer for id in dict.fromkeys(peers) if (peer := by_id.get(id)) is not None]
        else:
            found = self._endpoint.every_peer()
        return {id: peer.absent for peer in found if (id := peer.id) is not None and not peer.over}

    def __del__(self) -> None:
        endpoint = getattr(self, "_endpoint", None)  # None: the constructor has raised
        if endpoint is None or endpoint.over or self._baton.forked:
            return
        is_lost = not endpoint.closing
        endpoint.close_unattended()
        if is_lost:
            warnings.warn(f"unclosed netq communicator {self.id}", ResourceWarning, source=self, stacklevel=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(None if error is None else self.options.connection.linger, kept=True)

    def _targets(self, peers: tuple[uuid.UUID, ...]) -> list[tuple[uuid.UUID | None, Peer | None]]:
        is_server = self._endpoint.is_server
        if not peers:
            found: list[tuple[uuid.UUID | None, Peer | None]] = [
                (p.id, p) for p in self._endpoint.every_peer() if p.open
            ]
            return found if found or (is_server and not self._endpoint.closing) else [(None, None)]
        _check_ids("put", peers)
        by_id = self._peers_by_id()
        return [(id, by_id.get(id)) for id in peers]

    def _peers_by_id(self) -> Mapping[uuid.UUID | None, Peer]:
        if self._endpoint.is_server:
            return self._endpoint.peers
        return {peer.id: peer for peer in self._endpoint.every_peer()}

    def _delivery(
        self,
        data: Stream | bytes,
        lane: int,
        bounded: bool,
        id: uuid.UUID | None,
        peer: Peer | None,
        audience: tuple[uuid.UUID, ...],
    ) -> Delivery:
        delivery = Delivery(data, lane, audience)
        if not bounded:
            delivery.bounded = False
        delivery.peer = id
        delivery.guard, delivery.recall = (self._baton, None) if peer is None else (peer.baton, peer.recall)
        return delivery

    def _post(self, delivery: Delivery, peer: Peer | None) -> None:
        if peer is None:
            delivery.fail(self._why_unreachable(delivery.peer))
        else:
            peer.post(delivery)

    def _wake_to_flush(self) -> None:
        """Have what was put to several peers sent: one change of threads for all of them, at most."""
        for loop in self._endpoint.loops:
            loop.baton.wake_to_flush()

    def _why_unreachable(self, id: uuid.UUID | None) -> Closed:
        ended, closing = self._endpoint.ended_by, self._endpoint.closing
        if ended is not None and (ended.peer == self.id or (not closing and id in (None, ended.peer))):
            return Closed(ended.peer, ended.why)
        if closing:
            return Closed(self.id, "this communicator is closed")
        return Closed(id, "there is no session with this peer: it has closed, or never came")


@interruptible
def _loaded(load: Callable[[Any], Any], data: Stream | bytes) -> Any:
    # Only this part of `_unpack` may be interrupted: an exception before or after its `try` would lose the message.
    return load(data)


def _restore(data: Stream | bytes) -> None:
    """Make a message as it was before it was read, in memory of its own."""
    if isinstance(data, LentStream):
        data.copy_out()
    if isinstance(data, Stream):
        data.seek(0)


@interruptible
def _raise(interruption: BaseException) -> NoReturn:
    raise interruption from interruption.__cause__  # it has come out of `load`, which is no step


def _figures(peers: Sequence[Peer]) -> dict[Peer, Statistics]:
    return {peer: peer.statistics() for peer in peers}


def _ignore(peer: uuid.UUID, error: Exception) -> None:
    """Stands for `failed` of `multicast`, where the user has none."""


def _wake_none() -> None:
    """Wake no thread: this stands for `wake` until there is one."""


def _checked_lane(name: str, lane: object) -> int:
    if lane is None:
        return ANY_LANE
    if not isinstance(lane, int) or isinstance(lane, bool) or not 0 <= lane < LANES:
        raise ValueError(f"{name}: lane {lane!r}; expected a whole number from 0 to {LANES - 1}, or None for any")
    return lane


def _check_ids(name: str, peers: tuple[uuid.UUID, ...]) -> None:
    for id in peers:
        if not isinstance(id, uuid.UUID):
            raise TypeError(
                f"{name}: the peer {id!r} is a {type(id).__name__}; expected a uuid.UUID, as in Message.peer"
            )


def _checked_reason(name: str, peer: uuid.UUID, reason: str) -> str:
    """Return the reason as UTF-8 can have it: a name of a file may have other characters."""
    _check_ids(name, (peer,))
    if not isinstance(reason, str):
        raise TypeError(f"{name}: the reason {reason!r} is a {type(reason).__name__}; expected a str, for the client")
    return reason.encode(errors="backslashreplace").decode()


def _is_open(host: str) -> bool:
    """Whether processes on other machines may reach this host; with MQTT, it is the broker's."""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, or the path of a socket
        return host != "localhost" and not host.startswith("/")
