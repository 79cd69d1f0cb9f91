"""The communicator: the only thing users hold, from any number of threads.

What it is told goes to the loops of its Endpoint (netq/runtime/endpoint.py); what comes in is waiting in its Inbox.
Objects are pickled and unpickled here, in the caller's thread.
"""

from __future__ import annotations

import atexit
import functools
import math
import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

from netq.errors import Closed, InvalidOption, Unreadable
from netq.io.signal_handlers import raised_by_handler
from netq.options import CommunicatorOptions, NetworkLocation, Purpose
from netq.protocol.receiver import Item
from netq.protocol.wire import LANES
from netq.runtime.delivery import Delivery, gather
from netq.runtime.endpoint import Endpoint, TransportFactory
from netq.runtime.inbox import Inbox, Waiter
from netq.runtime.peer import Peer, Statistics
from netq.utils.stream import PickleSerializer, Stream, stream_of


class Message(NamedTuple):
    """What `get` returns: the data, and the id of the peer that put it."""

    peer: uuid.UUID
    data: Any


_message = functools.partial(tuple.__new__, Message)  # takes less time than Message(...)


class Communicator:
    """Moves Python objects between one server and many clients. Thread-safe; a context manager.

    Making one never waits: a client connects when the server appears. The constructor raises AddressError
    (a server's address is taken, or not ours) and SecurityError (a key or certificate cannot be used).
    After a fork it is the parent's: in the child put, get and statistics raise RuntimeError, and futures that were
    not done stay so.
    """

    def __init__(self, options: CommunicatorOptions | None, purpose: Purpose, transport: TransportFactory) -> None:
        if not isinstance(options, CommunicatorOptions | None):
            raise InvalidOption(f"options: a {type(options).__name__}; expected CommunicatorOptions")
        self.options = options or CommunicatorOptions()
        self.inbox = Inbox()
        self._endpoint = Endpoint(self.options, purpose, self.inbox, transport)
        self._home = self._endpoint.home
        self._baton = self._home.baton
        self._dump: Callable[[Any], Any] = self.options.serialization.dump
        if getattr(self._dump, "__func__", None) is PickleSerializer.dump:
            self._dump = self._dump.__self__.pack  # type: ignore[attr-defined]
        self._load: Callable[[Any], Any] = self.options.serialization.load
        self._loads_bytes = getattr(self._load, "__func__", None) is PickleSerializer.load
        atexit.register(self.close, self.options.connection.linger)

    @property
    def id(self) -> uuid.UUID:
        """This communicator's id, by which its peers know it."""
        return self.options.id

    @property
    def netloc(self) -> NetworkLocation:
        """Where a server listens, or a client connects; with the port that the system chose for port 0."""
        return self._endpoint.netloc

    def put(self, data: Any, *peers: uuid.UUID, lane: int = 0) -> Delivery:
        """Send `data` to each of `peers`: without any, a client's to the server, a server's to all clients.

        Never waits. Serialises once, here and now: its errors are raised at once. Buffers that travel out of
        band are not copied, so `data` must not change until the future is done. Messages on one lane arrive in
        order; lanes do not wait for one another. A server that has no clients has nobody to wait for: done at once.

        The future is done when the peer holds the message. It fails with Closed (the peer or this communicator
        is closed, or the session was lost while the message was on its way), QueueFull or MessageTooLarge.
        """
        if type(lane) is not int or not 0 <= lane < LANES:
            _check_lane(lane)
        if self._baton.forked:
            self._check_not_forked("put")
        dumped = self._dump(data)
        if type(dumped) is not bytes:
            dumped = stream_of(dumped, self._dump)
        if not peers and (only := self._endpoint.only) is not None and not (only.over or only.session.closing):
            delivery = Delivery(dumped, lane, (), only.session.peer, only.baton, only.recall)
            only.post(delivery)
            return delivery
        targets = self._targets(peers)
        if len(targets) == 1:
            return self._put(dumped, lane, *targets[0], ())
        audience = tuple(id for id, _ in targets if id is not None)
        return gather(self._baton, [self._put(dumped, lane, id, peer, audience) for id, peer in targets])

    def get(self, *peers: uuid.UUID, timeout: float | None = None) -> Message:
        """Wait for the next message of any of `peers`, or of anybody, and return it.

        Raises TimeoutError after `timeout` seconds; Closed when nothing is left and nothing can come, because
        the peers or this communicator are closed; Unreadable (or NotAllowed), with `.peer`, for a message that
        cannot be loaded: it is gone, and the next `get` goes on with the next one.
        """
        inbox = self.inbox
        if peers or timeout is not None or self._baton.forked:
            self.check_get(peers, timeout)
        try:
            item = inbox.take_now(peers) if inbox.arrived or inbox.sorted else None
            item = item or self._wait(peers, timeout)
        except BaseException:  # a signal handler's, it may be
            inbox.interrupted()
            raise
        return self.unpack(item)

    def _wait(self, peers: tuple[uuid.UUID, ...], timeout: float | None) -> Item:
        """Wait for the next message: polling, if nobody else waits, or in line."""
        baton, inbox = self._baton, self.inbox
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        wait_lock = baton.wait_lock("get")
        try:
            with wait_lock:  # the loop is in a function of its own: see docs/explanation/design.md, "A jump back"
                item = self._poll(wait_lock, peers, deadline)
        finally:
            if baton.parked_long or inbox.lines:
                baton.stop_polling()
        if item is None and (item := self._wait_in_line(peers, deadline)) is None:
            raise TimeoutError(f"no message within {timeout:g} s")
        return item

    def _poll(self, wait_lock: threading.Lock, peers: tuple[uuid.UUID, ...], deadline: float) -> Item | None:
        """Poll for the next message, until another thread has to go on with that."""
        baton, inbox = self._baton, self.inbox
        item = inbox.take_now(peers) if inbox.ends else None
        while item is None and not inbox.lines and baton.poll(wait_lock, deadline):
            if inbox.arrived or inbox.sorted or inbox.ends:
                item = inbox.take_now(peers, ahead=True)
        return item

    def _wait_in_line(self, peers: tuple[uuid.UUID, ...], deadline: float) -> Item | None:
        inbox = self.inbox
        found: list[Item] = []
        waiter = Waiter(peers, _nobody)

        def come() -> bool:
            while inbox.is_served(waiter):
                if (item := inbox.accept(waiter)) is not None:
                    found.append(item)
                    return True
                inbox.enter(waiter)
            return False

        def line_up(wake: Callable[[], object]) -> None:
            waiter.wake = wake
            inbox.enter(waiter)

        leave = functools.partial(inbox.leaving.append, waiter)  # which no signal handler can interrupt
        self._baton.wait(come, deadline, line_up, leave, "get")
        inbox.let_go_of_leaving()
        return found[0] if found else None

    def check_get(self, peers: tuple[uuid.UUID, ...], timeout: float | None) -> None:
        """Refuse what no `get` can do, here and in netq/aio.py."""
        self._check_not_forked("get")
        _check_ids("get", peers)
        check_timeout("get", timeout)

    def unpack(self, item: Item) -> Message:
        """Load what the inbox gave: the second half of `get`, and of netq/aio.py's.

        Raises Unreadable; or what a signal handler raised meanwhile, which is not the message's fault.
        """
        try:
            data: Stream | bytes = item[1]
            if type(data) is bytes and not self._loads_bytes:
                data = Stream.of(memoryview(data))
            return _message((item[0], self._load(data)))
        except Exception as error:  # a serialiser of the user's may raise anything
            if (interruption := raised_by_handler(error)) is not None:
                raise interruption from interruption.__cause__
            if isinstance(error, Unreadable):
                error.peer = item[0]
                error.add_note(f"in a message from {item[0]}")
                raise
            unreadable = Unreadable(f"a message from {item[0]} cannot be loaded: {error!r}")
            unreadable.peer = item[0]
            raise unreadable from error

    def close(self, timeout: float | None = None) -> int:
        """Deliver what has been put, say goodbye, and end. A server waits for its clients to have disconnected.

        For a peer that is not connected and has messages due it waits `linger` seconds; after `timeout` seconds
        for none. What is not delivered then fails with Closed; returns the number of those messages. What came
        before can still be taken by `get`. Closing again is harmless; so is closing in a fork, whose parent goes on.
        """
        check_timeout("close", timeout)
        for loop in self._endpoint.loops:
            loop.baton.check("close")
        if self._baton.forked:
            return 0
        atexit.unregister(self.close)  # now: if this is interrupted, the end of the process is not to wait again
        return self._endpoint.close(timeout)

    def request_close(self) -> None:
        """Begin to close, and return at once: for signal handlers, events and callbacks of futures.

        From then on `put` fails with Closed, and `get` raises Closed as soon as all is over. Then call `close`, which
        waits for that and ends.
        """
        if not self._baton.forked:
            self._home.call(self._endpoint.begin_to_close, None)

    def statistics(self) -> dict[uuid.UUID, Statistics]:
        """Return the figures of each peer that has a session."""
        self._check_not_forked("statistics")
        for loop in self._endpoint.loops:
            loop.baton.check("statistics")
        peers = [peer for peer in self._endpoint.peers.values() if peer.id is not None]
        figures = {peer.id: peer.loop.ask(peer.statistics) for peer in peers}
        return {peer.id: figures[peer.id] for peer in peers if peer.id is not None and not peer.over}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(timeout=None if error is None else self.options.connection.linger)

    def _check_not_forked(self, name: str) -> None:
        if self._baton.forked:
            raise RuntimeError(
                f"{name}(): this process is a fork of the one that made this communicator, and has neither its threads "
                "nor its connections; make a new one after the fork, with an id of its own"
            )

    def _targets(self, peers: tuple[uuid.UUID, ...]) -> list[tuple[uuid.UUID | None, Peer | None]]:
        table, is_server = self._endpoint.peers, self._endpoint.is_server
        if not peers:
            found: list[tuple[uuid.UUID | None, Peer | None]] = [(p.id, p) for p in table.values() if p.open]
            return found if found or (is_server and not self._endpoint.closing) else [(None, None)]
        _check_ids("put", peers)
        by_id = table if is_server else {peer.id: peer for peer in table.values()}
        return [(id, by_id.get(id)) for id in peers]

    def _put(
        self, data: Stream | bytes, lane: int, id: uuid.UUID | None, peer: Peer | None, audience: tuple[uuid.UUID, ...]
    ) -> Delivery:
        if peer is None:
            delivery = Delivery(b"", lane, (), id, self._baton)
            delivery.fail(self._why_unreachable(id))
        else:
            delivery = Delivery(data, lane, audience, id, peer.baton, peer.recall)
            peer.post(delivery)
        return delivery

    def _why_unreachable(self, id: uuid.UUID | None) -> Closed:
        ended = self._endpoint.why_over
        if self._endpoint.closing:
            return Closed(self.id, "this communicator is closed")
        if ended is not None and id in (None, ended.peer):
            return Closed(ended.peer, ended.why)
        return Closed(id, "there is no session with this peer: it has closed, or never came")


def _nobody() -> None:
    """Wake nobody."""


def _check_lane(lane: object) -> None:
    if not isinstance(lane, int) or isinstance(lane, bool) or not 0 <= lane < LANES:
        raise ValueError(f"put: lane {lane!r}; expected a whole number from 0 to {LANES - 1}")


def check_timeout(name: str, timeout: float | None) -> None:
    """Raise TypeError for what is no number of seconds."""
    if timeout is None or (isinstance(timeout, (int, float)) and not math.isnan(timeout)):
        return
    raise TypeError(f"{name}: timeout={timeout!r}; expected seconds, or None to wait as long as it takes")


def _check_ids(name: str, peers: tuple[uuid.UUID, ...]) -> None:
    for id in peers:
        if not isinstance(id, uuid.UUID):
            raise TypeError(
                f"{name}: the peer {id!r} is a {type(id).__name__}; expected a uuid.UUID, as in Message.peer"
            )
