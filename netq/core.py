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
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

from netq.errors import BufferMismatch, Closed, InvalidOption, Unreadable
from netq.io.baton import let_go
from netq.io.condition import deadline_of
from netq.io.interrupts import has_broken_step, interruptible, protect, raised_by_handler, unprotect
from netq.io.process_end import at_end, not_at_end
from netq.log import log
from netq.options import CommunicatorOptions, NetworkLocation, Purpose
from netq.protocol.destination import LentStream
from netq.protocol.receiver import Item
from netq.protocol.wire import ANY_LANE, LANES
from netq.runtime.delivery import Copy, Delivery, gather
from netq.runtime.endpoint import Endpoint, TransportFactory
from netq.runtime.inbox import Inbox, Waiter
from netq.runtime.peer import Peer
from netq.runtime.statistics import Statistics
from netq.security.seal import sealed_id
from netq.text import describe
from netq.utils.serializer import Loader, Serializer
from netq.utils.stream import Stream


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
        self.inbox = Inbox()
        self._endpoint = Endpoint(self.options, purpose, self.inbox, transport)
        self._home = self._endpoint.home
        self._baton = self._home.baton
        serializer = Serializer(self.options.serialization.dump, self.options.serialization.load)
        # `loader` is for `get(into=…)`, here and in the fronts.
        self._pack, self._load, self.loader = serializer.pack, serializer.load, serializer.loader
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
    def put(self, data: Any, *peers: uuid.UUID, lane: int | None = 0) -> Delivery:
        """Send `data` to each of `peers`. Without `peers` a client sends to its server, a server to all its clients.

        Never waits. Serialises once, in this call, and raises the errors of that. Buffers that travel out of band are
        not copied, so `data` must not change until the future is done. Messages on one lane arrive in order; lanes do
        not wait for one another. `lane=None` is for messages without order: each takes the lane from 8 to 15 on which
        the least waits. If a server has no clients, the future is done at once.

        The future is done when the peer holds the message. It fails with Closed (the peer or this communicator
        is closed, or the session was lost while the message was on its way), QueueFull or MessageTooLarge.
        """
        if type(lane) is not int or not 0 <= lane < LANES:
            lane = ANY_LANE if lane is None else _checked_lane(lane)
        if self._baton.forked:
            self._baton.check_not_forked("put()")
        # The state is read without a lock, and each attribute once: the loop's thread may replace the peer at any
        # moment. A message for a session that ends meanwhile fails with Closed when the outbox is drained.
        try:
            packed = self._pack(data)
            if not peers and (only := self._endpoint.only) is not None and not (only.over or only.session.closing):
                delivery = Delivery(packed, lane)
                delivery.peer, delivery.guard, delivery.recall = only.session.peer, only.baton, only.recall
                only.post(delivery)
                return delivery
            targets = self._targets(peers)
            if len(targets) == 1:
                delivery = self._delivery(packed, lane, *targets[0], ())
                self._post(delivery, targets[0][1])
                return delivery
            audience = tuple([id for id, _ in targets if id is not None])
            deliveries = [self._delivery(packed, lane, id, peer, audience) for id, peer in targets]
            whole = gather(self._baton, deliveries)
            for delivery, (_, peer) in zip(deliveries, targets, strict=True):
                self._post(delivery, peer)
            self._wake_to_flush()
            return whole
        except BaseException as error:
            self.check_step(error)
            raise

    def spread(
        self, data: Any, peers: Sequence[uuid.UUID], failed: Callable[[uuid.UUID, Exception], object], lane: int = 0
    ) -> None:
        """Send `data` to many clients, without futures: for netq/exchange/server.py. Otherwise as `put`.

        `failed(peer, error)` is called for each client that does not get it, here or in a thread of netq. It must not
        wait.
        """
        self._baton.check_not_forked("put()")
        packed = self._pack(data)
        audience = tuple(iter(peers)) if len(peers) > 1 else ()  # a tuple of its own, by which transports know the put
        table = self._endpoint.peers
        for id in peers:
            peer = table.get(id)
            if peer is None:
                failed(id, self._why_unreachable(id))
            else:
                message = Copy(packed, lane, audience)
                message.peer, message.guard, message.failed = id, peer.baton, failed
                peer.post(message)
        self._wake_to_flush()

    def put_unbounded(self, data: Any, peer: uuid.UUID, lane: int = 0) -> Delivery:
        """Send `data` to a client, also beyond queue_size and queue_bytes: for netq/exchange/outbox.py, which counts.

        Otherwise as `put`. Messages of this kind keep their order, as none of them is refused for want of room.
        """
        self._baton.check_not_forked("put()")
        packed = self._pack(data)
        found = self._endpoint.peers.get(peer)
        delivery = self._delivery(packed, lane, peer, found, ())
        delivery.bounded = False
        self._post(delivery, found)
        return delivery

    def expel(self, peer: uuid.UUID, reason: str, pause: float = 0.0) -> None:
        """End the session with a client, which gets the reason. Harmless if it is over.

        With a `pause`, in seconds, drop its unread messages too, and refuse it for so long. For netq/exchange/outbox.py
        and fl/server/dispatcher.py.
        """
        self._endpoint.expel(peer, reason, pause)
        if pause:  # now: its end is noted in a moment, and drops those that come until then
            self.inbox.discard(peer, self._endpoint.options.events.end)

    def set_aside(self, peer: uuid.UUID, reason: str) -> None:
        """Let messages of others pass the one that is arriving from a client: for fl/server/members.py.

        The client loses its link, gets the reason, and comes back. Until `let_go_on` its messages beyond `window` wait,
        also those that it has not begun. What has arrived of them is kept, unless others need the room.
        """
        if (found := self._endpoint.peers.get(peer)) is not None:
            found.loop.call(found.set_aside, reason)

    def let_go_on(self, peer: uuid.UUID) -> None:
        """Let a client go on that was set aside. Its message claims room behind those that wait. Harmless without."""
        if (found := self._endpoint.peers.get(peer)) is not None:
            found.loop.call(found.let_go_on)

    @property
    def is_short(self) -> bool:
        """Whether a message that has begun waits for `memory`: for fl/server/members.py."""
        return self._endpoint.is_short

    def get(self, *peers: uuid.UUID, timeout: float | None = None, into: Any = None) -> Message:
        """Wait for the next message of any of `peers`, and return it. Without `peers`, of any peer.

        `into` is memory of yours for the large buffers of the message: one writable, contiguous buffer (a numpy array,
        a bytearray), or a list of them. PickleSerializer puts the message's arrays there, in order, and they are views
        of it; BufferSerializer puts the bytes there. Raises BufferMismatch, with the message, if they do not fit.

        Raises TimeoutError after `timeout` seconds. Raises Closed when no message is left and none can come, because
        the peers or this communicator are closed. Raises Unreadable (or NotAllowed), with its `peer`, for a message
        that cannot be loaded: that message is dropped, and the next `get` returns the next one.
        """
        inbox = self.inbox
        if peers or timeout is not None or self._baton.forked:
            self.check_get(peers, timeout)
        load = None if into is None else self.loader(into)
        protect()
        try:
            item = inbox.take_now(peers) if inbox.arrived or inbox.queues else None
            if item is None:
                item = self._wait(peers, timeout) if load is None else self._wait_into(load, peers, timeout)
            return self.unpack(item, load)
        except BaseException as error:
            self.check_step(error)
            raise

    def check_step(self, error: BaseException) -> None:
        """End the communicator if a signal handler has raised this error in the middle of a step."""
        if has_broken_step(error):
            let_go(self.inbox.lock)
            self.inbox.drop_reservations(Closed(self.id, "a signal handler has raised in the middle of a step"))
            self._baton.end_by(error)

    def _wait_into(self, load: Loader, peers: tuple[uuid.UUID, ...], timeout: float | None) -> Item:
        """Wait as `_wait` does. A large message that begins meanwhile is received where `load` wants it."""
        if load.plan is None or self.inbox.waiters:  # which get that message
            return self._wait(peers, timeout)
        destination, item = self._endpoint.lend(load.plan, peers), None
        try:
            item = self._wait(peers, timeout)
        finally:
            self._endpoint.recall(destination, None if item is None else item[1])
        return item

    def _wait(self, peers: tuple[uuid.UUID, ...], timeout: float | None) -> Item:
        """Wait for the next message: by polling, if no other thread waits, or as a waiter."""
        baton, inbox = self._baton, self.inbox
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
        inbox = self.inbox
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

    def check_get(self, peers: tuple[uuid.UUID, ...], timeout: float | None) -> None:
        """Check the arguments of `get`, here and in the fronts."""
        self._baton.check_not_forked("get()")
        _check_ids("get", peers)
        check_timeout("get", timeout)

    def unpack(self, item: Item, load: Callable[[Any], Any] | None = None) -> Message:
        """Load an item of the inbox: the second half of `get`, here and in the fronts. `load` is of `loader`.

        Raises Unreadable or BufferMismatch. An exception of a signal handler that ran meanwhile comes out as it is, and
        the item is the next of its peer again.
        """
        try:
            message = _message((item[0], _loaded(load or self._load, item[1])))
        except BaseException as error:  # the user's serialiser may raise anything
            interruption = raised_by_handler(error)
            if interruption is None and isinstance(error, KeyboardInterrupt):
                interruption = error  # Python's own handler has no frame
            if interruption is not None:
                _restore(item[1])
                self.inbox.put_back(item)
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
                error.message = self.unpack(item)
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

    def statistics(self) -> dict[uuid.UUID, Statistics]:
        """Return the figures of each peer that has a session."""
        for loop in self._endpoint.loops:
            loop.baton.check("statistics")
        peers = [peer for peer in self._endpoint.peers.values() if peer.id is not None]
        figures: dict[Peer, Statistics] = {}
        for loop in self._endpoint.loops:
            own = [peer for peer in peers if peer.loop is loop]
            for first in range(0, len(own), _AT_ONCE):
                figures |= loop.ask(_figures, own[first : first + _AT_ONCE])
        return {peer.id: figures[peer] for peer in peers if peer.id is not None and not peer.over}

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
        table, is_server = self._endpoint.peers, self._endpoint.is_server
        if not peers:
            found: list[tuple[uuid.UUID | None, Peer | None]] = [(p.id, p) for p in table.values() if p.open]
            return found if found or (is_server and not self._endpoint.closing) else [(None, None)]
        _check_ids("put", peers)
        by_id = table if is_server else {peer.id: peer for peer in table.values()}
        return [(id, by_id.get(id)) for id in peers]

    def _delivery(
        self, data: Stream | bytes, lane: int, id: uuid.UUID | None, peer: Peer | None, audience: tuple[uuid.UUID, ...]
    ) -> Delivery:
        delivery = Delivery(data, lane, audience)
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
    # Only this part of `unpack` may be interrupted: an exception before its `try`, or after it, would lose the message.
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


def _wake_none() -> None:
    """Wake no thread: this stands for `wake` until there is one."""


def _checked_lane(lane: object) -> int:
    if not isinstance(lane, int) or isinstance(lane, bool) or not 0 <= lane < LANES:
        raise ValueError(f"put: lane {lane!r}; expected a whole number from 0 to {LANES - 1}, or None for any")
    return lane


def check_timeout(name: str, timeout: float | None) -> None:
    """Raise TypeError for what is no number of seconds."""
    if timeout is None or (isinstance(timeout, (int, float)) and timeout >= -math.inf):  # which NaN is not
        return
    raise TypeError(f"{name}: timeout={timeout!r}; expected seconds, or None to wait as long as it takes")


def _check_ids(name: str, peers: tuple[uuid.UUID, ...]) -> None:
    for id in peers:
        if not isinstance(id, uuid.UUID):
            raise TypeError(
                f"{name}: the peer {id!r} is a {type(id).__name__}; expected a uuid.UUID, as in Message.peer"
            )


def _is_open(host: str) -> bool:
    """Whether processes on other machines may reach this host; with MQTT, it is the broker's."""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, or the path of a socket
        return host != "localhost" and not host.startswith("/")
