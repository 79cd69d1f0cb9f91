"""The communicator: the only thing users hold.

Above, what a user calls, in any thread; below, what the loops call. Each peer belongs to one loop, and only
that loop touches its session (netq/peer.py). The table of peers, the transport, and the links that have not
said who they are belong to the first loop, `_home`; the table is replaced, never changed, so that any thread
may read it.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import logging
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from netq.connection import Connection
from netq.delivery import Delivery, gather
from netq.errors import Closed, Unreadable
from netq.events import Event, Hello, Lost
from netq.inbox import Inbox
from netq.lane import Outgoing
from netq.link import Link, Owner, Transport, backoff
from netq.loop import Loop
from netq.memory import Memory
from netq.options import CommunicatorOptions, NetworkLocation, Purpose
from netq.peer import Peer, Statistics
from netq.session import Session
from netq.utils.stream import Stream
from netq.wire import LANES, Code, Greeting

log = logging.getLogger("netq")

_AGE = 10.0  # seconds after which memory that nobody uses is given back
TransportFactory = Callable[[Owner, Loop], Transport]


class Message(NamedTuple):
    """What `get` returns: the data, and the id of the peer that put it."""

    peer: uuid.UUID
    data: Any


class Communicator:
    """Moves Python objects between one server and many clients. Thread-safe; a context manager.

    Making one never waits: a client connects when the server appears. The constructor raises AddressError
    (a server's address is taken, or not ours) and SecurityError (a key or certificate cannot be used).
    """

    def __init__(self, options: CommunicatorOptions | None, purpose: Purpose, transport: TransportFactory) -> None:
        self.options = options or CommunicatorOptions()
        self._is_server = purpose is Purpose.SERVER
        self._inbox = Inbox()
        self._loops = [Loop(f"netq-{self.id.hex[:8]}-{n}", self._crashed) for n in range(self.options.workers)]
        self._memories = {loop: Memory() for loop in self._loops}
        self._home = self._loops[0]
        self._turn = itertools.cycle(self._loops)
        self._peers: dict[uuid.UUID | None, Peer] = {}
        self._strangers: set[Link] = set()
        self._closing = False
        self._undelivered = 0
        self._gone = threading.Event()  # closing, and no peer is left
        self._attempt = 0
        self._trouble = ""  # what the log has been told of
        if not self._is_server:
            self._peers = {None: self._new_peer(secrets.token_bytes(16))}
        try:
            self._transport = transport(self, self._home)
            self._transport.open()
        except BaseException:
            for loop in self._loops:
                loop.stop()
                loop.start()
                loop.join()
            raise
        for loop in self._loops:
            self._age(loop)
            loop.start()
        atexit.register(self.close, self.options.connection.linger)

    # For users, in any thread.

    @property
    def id(self) -> uuid.UUID:
        """This communicator's id, by which its peers know it."""
        return self.options.id

    @property
    def netloc(self) -> NetworkLocation:
        """Where a server listens, or a client connects; with the port that the system chose for port 0."""
        return self._transport.netloc

    def put(self, data: Any, *peers: uuid.UUID, lane: int = 0) -> Delivery:
        """Send `data` to each of `peers`: without any, a client's to the server, a server's to all clients.

        Never waits. Serialises once, here and now: its errors are raised at once. Buffers that travel out of
        band are not copied, so `data` must not change until the future is done. Messages on one lane arrive in
        order; lanes do not wait for one another.

        The future is done when the peer holds the message. It fails with Closed (the peer or this communicator
        is closed, or the session was lost while the message was on its way), QueueFull or MessageTooLarge.
        """
        if not (isinstance(lane, int) and 0 <= lane < LANES):
            raise ValueError(f"put: lane {lane!r}; expected a whole number from 0 to {LANES - 1}")
        stream = self.options.serialization.dump(data)
        return gather([self._put(stream, lane, id, peer) for id, peer in self._targets(peers)])

    def get(self, *peers: uuid.UUID, timeout: float | None = None) -> Message:
        """Wait for the next message of any of `peers`, or of anybody, and return it.

        Raises TimeoutError after `timeout` seconds; Closed when nothing is left and nothing can come, because
        the peers or this communicator are closed; Unreadable (or NotAllowed), with `.peer`, for a message that
        cannot be loaded: it is gone, and the next `get` goes on with the next one.
        """
        item = self._inbox.take(*peers, timeout=timeout)
        try:
            return Message(item.peer, self.options.serialization.load(item.stream))
        except Unreadable as error:
            error.peer = item.peer
            error.add_note(f"in a message from {item.peer}")
            raise
        except Exception as error:  # a serialiser of the user's may raise anything
            unreadable = Unreadable(f"a message from {item.peer} cannot be loaded: {error!r}")
            unreadable.peer = item.peer
            raise unreadable from error

    def close(self, timeout: float | None = None) -> int:
        """Deliver what has been put, say goodbye, and end. A server waits for its clients to have disconnected.

        For a peer that is not connected and has messages due it waits `linger` seconds; after `timeout` seconds
        for none. What is not delivered then fails with Closed; returns the number of those messages. What came
        before can still be taken by `get`. Closing again is harmless.
        """
        if any(loop.is_current for loop in self._loops):
            raise RuntimeError("close() waits for the loop, so it cannot be called in it (from an event or a callback)")
        self._home.ask(self._close)
        if not self._gone.wait(timeout):
            for peer in self._peers.values():
                peer.loop.ask(peer.end, Closed(peer.id, "closed before all was delivered"))
        self._home.ask(self._shut)
        for loop in self._loops:
            loop.stop(within=1.0)
            loop.join()
        atexit.unregister(self.close)
        return self._undelivered

    def statistics(self) -> dict[uuid.UUID, Statistics]:
        """Return the figures of each peer that has a session."""
        return {peer.id: peer.loop.ask(peer.statistics) for peer in self._peers.values() if peer.id is not None}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(timeout=None if error is None else self.options.connection.linger)

    def _targets(self, peers: tuple[uuid.UUID, ...]) -> list[tuple[uuid.UUID | None, Peer | None]]:
        table = self._peers
        if not peers:
            found: list[tuple[uuid.UUID | None, Peer | None]] = [(p.id, p) for p in table.values() if p.open]
            return found if found or self._is_server else [(None, None)]
        by_id = table if self._is_server else {peer.id: peer for peer in table.values()}
        return [(id, by_id.get(id)) for id in peers]

    def _put(self, stream: Stream, lane: int, id: uuid.UUID | None, peer: Peer | None) -> Delivery:
        delivery = Delivery(id)
        if peer is None:
            delivery.settle(Closed(id, "there is no session with this peer"))
            return delivery
        message = Outgoing(stream, lane, delivery, delivery.set_running_or_notify_cancel)
        delivery.withdraw = functools.partial(peer.loop.call, peer.withdraw, message)
        peer.loop.call(peer.send, message)
        return delivery

    # For links and transports (netq/link.py, Owner), in a link's loop.

    def connect(self) -> Connection:
        """Return a connection for a new link: a client's speaks for its session."""
        peer = self._peers.get(None)  # none: a server's link has not said whose it is, and a closed client has no more
        return Connection(self.id, self.options.connection, time.monotonic(), None if peer is None else peer.session)

    def attach(self, link: Link) -> None:
        """Use a new link: a client's at once, a server's when it has said who it is."""
        if self._is_server:
            self._strangers.add(link)
            self._watch(link)
        elif None in self._peers:
            link.peer = self._peers[None]
            self._peers[None].attach(link)
            link.flush()
        else:
            link.close()

    def deliver(self, link: Link, events: Sequence[Event]) -> None:
        """Hand events to the peer whose link it is."""
        if isinstance(link.peer, Peer):
            link.peer.handle(link, events)
            return
        match events[-1]:  # a Hello that a Lost follows wants no answer
            case Hello(greeting):
                self._home.call(self._hello, link, greeting)  # not now: the link may move, and is at work
            case Lost(error):
                self._refuse(link, str(error))

    def lost(self, link: Link | None, error: Exception) -> None:
        """Let a link go; a client tries again."""
        if link is None:
            self._retry(error)
        elif isinstance(link.peer, Peer):
            link.peer.detach(link, error)
        else:
            self._strangers.discard(link)
            log.warning("%s: %s; the connection was closed", link.address, error)

    # For peers (netq/peer.py, House), in a peer's loop.

    def opened(self, peer: Peer, *, resumed: bool) -> None:
        """Tell the user of a new session."""
        if not self._is_server:
            self._home.call(self._reached, peer)
        if not resumed and peer.id is not None:
            self._inbox.begin(peer.id)
            self._tell(self.options.events.ini, peer.id)

    def forgotten(self, id: uuid.UUID) -> None:
        """Tell the user that the session of before is over."""
        self._inbox.finish(id, Closed(id, "it began anew"))
        self._tell(self.options.events.fin, id)

    def finished(self, peer: Peer) -> None:
        """No more messages come: whoever waits for some learns it."""
        error = Closed(peer.id, "it has closed")
        if not self._is_server:
            self._inbox.close(error)
        elif peer.id is not None:
            self._inbox.finish(peer.id, error)

    def detached(self, peer: Peer, error: Exception) -> None:
        """Log it; a client tries again."""
        if not self._is_server:
            self._home.call(self._retry, error)
        elif not peer.session.closing:
            log.info("%s: lost (%s); its session waits for it", peer.id, error)

    def ended(self, peer: Peer, error: Closed, undelivered: int) -> None:
        """Forget the peer."""
        if self._home.is_current:
            self._forget(peer, error, undelivered)
        else:
            self._home.call(self._forget, peer, error, undelivered)

    # In the first loop.

    def _new_peer(self, token: bytes) -> Peer:
        loop = next(self._turn) if self._is_server else self._home
        session = Session(token, self.options.connection, self._memories[loop])
        return Peer(self, self._inbox, loop, self.options.connection, session)

    def _age(self, loop: Loop) -> None:
        """Give memory back that no message has needed for a while."""
        self._memories[loop].age()
        loop.at(time.monotonic() + _AGE, self._age, loop)

    def _watch(self, link: Link) -> None:
        """Cut a link that does not say in time who it is."""
        if link in self._strangers and (events := link.connection.tick(time.monotonic())):
            self.deliver(link, events)
        if link in self._strangers:
            self._home.at(link.connection.deadline(), self._watch, link)

    def _hello(self, link: Link, greeting: Greeting) -> None:
        if link not in self._strangers:
            return None  # lost meanwhile
        peer = self._peers.get(greeting.id)
        same = peer is not None and not peer.over and secrets.compare_digest(peer.session.token, greeting.token)
        if greeting.id == self.id:
            return self._refuse(link, f"the id {greeting.id} is the server's own")
        if self._closing and not same:
            return self._refuse(link, "the server is closing")
        if peer is not None and not same and peer.link is not None:
            return self._refuse(link, f"the id {greeting.id} is in use, by a client at {peer.link.address}")
        if peer is None or not same:
            if peer is not None:
                self._replace(peer)
            peer = self._new_peer(greeting.token)
            peer.session.peer = greeting.id
            self._peers = {**self._peers, greeting.id: peer}
        self._strangers.discard(link)
        link.peer = peer
        if peer.loop is self._home:
            return peer.accept(link, greeting, resumed=same)
        link.move(peer.loop)
        return peer.loop.call(functools.partial(peer.accept, link, greeting, resumed=same))

    def _replace(self, peer: Peer) -> None:
        """A client has come anew under its id: its earlier session is over."""
        error = Closed(peer.id, "it began anew")
        self._forget(peer, error, 0)
        peer.loop.call(peer.end, error)

    def _refuse(self, link: Link, reason: str) -> None:
        log.warning("%s: %s; the connection was closed", link.address, reason)
        self._strangers.discard(link)
        link.connection.refuse(Code.REFUSED, reason)
        link.close()

    def _reached(self, peer: Peer) -> None:
        self._attempt = 0
        if self._trouble:
            log.warning("%s: connected", self._where)
            self._trouble = ""

    def _retry(self, error: Exception) -> None:
        if None not in self._peers:
            return
        if (trouble := str(error)) != self._trouble:
            log.warning("%s: %s; trying again until it answers", self._where, trouble)
            self._trouble = trouble
        pause = backoff(self._attempt, self.options.connection)
        self._attempt += 1
        self._home.at(time.monotonic() + pause, self._try)

    def _try(self) -> None:
        if None in self._peers:
            self._transport.open()

    @property
    def _where(self) -> str:
        return "{}:{}".format(*self.netloc)

    def _forget(self, peer: Peer, error: Closed, undelivered: int) -> None:
        key = peer.id if self._is_server else None
        self._undelivered += undelivered if self._closing else 0
        if self._peers.get(key) is not peer:
            return
        self._peers = {id: other for id, other in self._peers.items() if other is not peer}
        if peer.id is not None:
            self._inbox.finish(peer.id, error)
            self._tell(self.options.events.fin, peer.id)
        if not (self._is_server or self._closing or peer.session.closing):
            self._peers = {None: self._new_peer(secrets.token_bytes(16))}  # given up by time, not by anybody's wish
            return
        if not self._is_server:
            self._inbox.close(error)
        if self._closing and not self._peers:
            self._gone.set()

    def _close(self) -> None:
        self._closing = True
        for peer in self._peers.values():
            peer.loop.call(peer.finish)
        if not self._peers:
            self._gone.set()

    def _shut(self) -> None:
        self._transport.close()
        for link in list(self._strangers):
            self._refuse(link, "the server is closing")
        self._inbox.close(Closed(self.id, "this communicator is closed"))

    def _tell(self, event: Callable[[uuid.UUID], object] | None, peer: uuid.UUID) -> None:
        if event is None:
            return
        try:
            event(peer)
        except Exception:  # the user's code, in our thread: it must not end the loop
            log.exception("an event function failed for %s", peer)

    def _crashed(self, error: BaseException) -> None:
        """A loop has ended by a bug of ours. Let nobody wait for it."""
        log.critical("netq: internal error; the communicator is closed", exc_info=error)
        closed = Closed(self.id, f"internal error: {error!r}")
        closed.__cause__ = error
        self._inbox.close(closed)
        self._closing = True
        for peer in self._peers.values():
            peer.loop.call(peer.end, closed)
        self._gone.set()
