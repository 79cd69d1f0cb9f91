"""The loops' side of a communicator: who is there, which link carries whom, and what becomes of events.

Made and driven by netq/core.py; called by transports and links (netq/runtime/link.py, LinkListener) and by peers
(netq/runtime/peer.py, House), each in its loop's thread. Each peer belongs to one loop, and only that loop touches its
session. The table of peers, the transport, and the links that have not said who they are belong to the first loop,
`home`; the table is replaced, never changed, so that any thread may read it.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import secrets
import time
import uuid
from collections.abc import Callable, Sequence

from netq.errors import Closed, strip_tracebacks
from netq.io.condition import Condition
from netq.io.loop import Loop
from netq.io.timers import Timer
from netq.options import CommunicatorOptions, NetworkLocation, Purpose
from netq.protocol.connection import Connection
from netq.protocol.events import Event, Hello, Lost
from netq.protocol.flow_control import Budget
from netq.protocol.memory import KEEP, Memory
from netq.protocol.session import Session
from netq.protocol.wire import Code, Greeting
from netq.runtime.inbox import Inbox
from netq.runtime.link import Link, LinkListener, Transport, backoff
from netq.runtime.log_dedup import LogDedup
from netq.runtime.peer import EXPLAIN, Interrupted, Peer
from netq.text import printable

log = logging.getLogger("netq")

_STEADY = 1.0  # seconds that a link has to last, for the next pause to be a short one again
_NEWS = 60.0  # seconds after which a complaint about a host is news again, once a client of it is let in
_AGE = 10.0  # seconds after which memory that nobody uses is given back
TransportFactory = Callable[[LinkListener, Loop], Transport]


class Endpoint:
    """Where links and peers meet. A server has a peer for each client, a client has one: its server."""

    def __init__(
        self, options: CommunicatorOptions, purpose: Purpose, inbox: Inbox, transport: TransportFactory
    ) -> None:
        self.options = options
        self.is_server = purpose is Purpose.SERVER
        self._inbox = inbox
        self.loops = [
            Loop(
                f"netq-{options.id.hex[:8]}-{n}",
                self._crashed,
                shared=options.workers == 1,
                serve=inbox.settle,
                waiters=inbox.lines,
                lock=inbox.lock,
            )
            for n in range(options.workers)
        ]
        self.home = self.loops[0]
        self.peers: dict[uuid.UUID | None, Peer] = {}  # by id; a client's server by None
        self.only: Peer | None = None  # a client's server
        self.gone = False  # closing, and no peer is left
        self._all_ended = Condition()  # rings then
        self.why_over: Closed | None = None  # what ended a client's session, for good
        self.undelivered = 0  # messages that failed because of closing
        share = options.connection.memory // options.workers
        self._memories = {loop: Memory(min(KEEP, share // 4), Budget(share)) for loop in self.loops}
        self._turn = itertools.cycle(self.loops)
        self._strangers: dict[Link, Timer | None] = {}  # and what cuts them
        self.closing = False  # the user has closed
        self._log_dedup = LogDedup()
        self._attempt = 0
        self._up_since = math.inf  # when a client's session was last taken up
        if not self.is_server:
            self.only = self._new_peer(secrets.token_bytes(16))
            self.peers = {None: self.only}
        self._start(transport)

    @property
    def netloc(self) -> NetworkLocation:
        """Where the server listens."""
        return self._transport.netloc

    # For the communicator, in any thread.

    def close(self, timeout: float | None) -> int:
        """Let every peer finish, for so long; then end all of it. Return the number of undelivered messages."""
        self.home.ask(self.begin_to_close, timeout)
        if not self._all_ended.wait(lambda: self.gone, timeout):
            for loop in self.loops:
                loop.ask(self._cut_off, loop)
        self.home.ask(self._shut)
        for loop in self.loops:
            loop.stop(within=1.0)
            loop.join()
        return self.undelivered

    def _start(self, transport: TransportFactory) -> None:
        try:
            self._transport = transport(self, self.home)
            self._transport.open()
            self._run()
        except BaseException:
            for loop in self.loops:
                loop.end()
            raise

    def _run(self) -> None:
        try:
            for loop in self.loops:
                self._age(loop)
                loop.start()
        except BaseException:  # a signal's, most likely
            self.home.call(self._transport.close)
            raise

    def begin_to_close(self, timeout: float | None) -> None:
        """Let every peer finish, in the first loop; `timeout` is how long the caller waits for that."""
        self.closing = True
        for peer in self.peers.values() if timeout != 0 else ():
            peer.loop.call(peer.finish)
        if not self.peers:
            self._all_gone()
        elif self.is_server:
            self.home.at(time.monotonic() + EXPLAIN, self._explain, timeout)

    def _cut_off(self, loop: Loop) -> None:
        """Wait for none of this loop's peers any more."""
        for peer in self.peers.values():
            if peer.loop is loop:
                peer.cut_off(Closed(peer.id, "closed before all was delivered"))

    def _explain(self, timeout: float | None) -> None:
        """Say in the log why closing takes so long."""
        if connected := sum(peer.link is not None for peer in self.peers.values()):
            log.warning(
                "closing waits%s for %d client%s to disconnect; without a `get` in another thread it takes no more "
                "than `window` and `memory` allow%s",
                "" if timeout is None else f" up to {timeout:g} s",
                connected,
                "s" * (connected > 1),
                "; close(timeout=...) waits no longer than that" if timeout is None else "",
            )

    def _all_gone(self) -> None:
        self._close_inbox(self._closed())
        self.gone = True
        self._all_ended.notify()

    def _close_inbox(self, error: Closed) -> None:
        self.home.baton.defer(self._inbox.close, error)

    def _closed(self) -> Closed:
        return Closed(self.options.id, "this communicator is closed")

    def _shut(self) -> None:
        self._transport.close()
        for link in list(self._strangers):
            self._refuse(link, "the server is closing")
        self._close_inbox(self._closed())

    # For links and transports (netq/runtime/link.py, LinkListener), in a link's loop.

    def connect(self) -> Connection:
        """Return a connection for a new link: a client's speaks for its session."""
        peer = self.peers.get(None)  # none: a server's link has not said whose it is, and a closed client has no more
        session = None if peer is None else peer.session
        return Connection(self.options.id, self.options.connection, time.monotonic(), session)

    def attach(self, link: Link) -> None:
        """Use a new link: a client's at once, a server's when it has said who it is."""
        if self.is_server:
            self._strangers[link] = None
            self._watch(link)
        elif None in self.peers:
            link.peer = self.peers[None]
            self.peers[None].attach(link)
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
                self.home.call(self._hello, link, greeting)  # not now: the link may move, and is at work
            case Lost(error):
                self._refuse(link, str(error))

    def lost(self, link: Link | None, error: Exception) -> None:
        """Let a link go; a client tries again."""
        strip_tracebacks(error)
        if link is None:
            self._retry(error)
        elif isinstance(link.peer, Peer):
            link.peer.detach(link, error)
        else:
            self._known(link)
            self._complain(link, str(error))

    # For peers (netq/runtime/peer.py, House), in a peer's loop.

    def opened(self, peer: Peer, *, resumed: bool) -> None:
        """Tell the user of a new session."""
        if not self.is_server:
            self.home.call(self._reached, peer)
        if not resumed and peer.id is not None:
            hold = self._inbox.hold()  # nobody is to have a message before the event
            self.home.baton.defer(self._inbox.begin, peer.id)
            self._tell(self.options.events.ini, peer.id)
            self.home.baton.defer(self._inbox.let_go, hold)

    def forgotten(self, peer: Peer, id: uuid.UUID) -> None:
        """Tell the user that the session of before is over; whoever waits for this id waits on if it has come back."""
        level = logging.INFO if self.is_server else logging.WARNING
        log.log(level, "%s: it began anew; what it had taken and not answered may be lost with it", id)
        self._tell(self.options.events.fin, id)
        if peer.id != id:
            self.home.baton.defer(self._inbox.finish, id, Closed(id, "it began anew, under another id"))

    def finished(self, peer: Peer) -> None:
        """No more messages come: whoever waits for some learns it."""
        error = Closed(peer.id, "it has closed")
        if not self.is_server:
            self._close_inbox(self._closed() if self.closing else error)
        elif peer.id is not None:
            self.home.baton.defer(self._inbox.finish, peer.id, error)

    def detached(self, peer: Peer, error: Exception) -> None:
        """Log it; a client tries again."""
        if not self.is_server:
            self.home.call(self._retry, error)
        elif not peer.session.closing:
            log.info("%s: lost (%s); its session waits for it", peer.id, error)

    def ended(self, peer: Peer, error: Closed, undelivered: int) -> None:
        """Forget the peer."""
        if self.home.is_current:
            self._forget(peer, error, undelivered)
        else:
            self.home.call(self._forget, peer, error, undelivered)

    # In the first loop.

    def _new_peer(self, token: bytes) -> Peer:
        loop = next(self._turn) if self.is_server else self.home
        session = Session(token, self.options.connection, self._memories[loop], self._inbox.arrived)
        return Peer(self, loop, self.options.connection, session)

    def _age(self, loop: Loop) -> None:
        """Give memory back that no message has needed for a while."""
        self._memories[loop].age()
        loop.at(time.monotonic() + _AGE, self._age, loop)

    def _watch(self, link: Link) -> None:
        """Cut a link that does not say in time who it is."""
        if link in self._strangers and (events := link.connection.tick(time.monotonic())):
            self.deliver(link, events)
        if link in self._strangers:
            self._strangers[link] = self.home.at(link.connection.deadline(), self._watch, link)

    def _known(self, link: Link) -> None:
        """It is a stranger no more: watch it no more, and keep nothing of it."""
        if timer := self._strangers.pop(link, None):
            timer.cancel()

    def _hello(self, link: Link, greeting: Greeting) -> None:
        if link not in self._strangers:
            return None  # lost meanwhile
        peer = self.peers.get(greeting.id)
        proven = peer is not None and not peer.over and secrets.compare_digest(peer.session.token, greeting.token)
        same = proven and peer is not None and not peer.session.restarted_elsewhere(greeting)
        if peer is not None and proven and not same and self.closing:
            peer.loop.call(peer.end, Closed(greeting.id, "it began anew"))
        if objection := self._objection(greeting, None if proven else peer, same=same):
            return self._refuse(link, objection)
        if peer is None or peer.over or (peer.session.closing and not same):
            earlier, peer = peer, self._new_peer(greeting.token)
            peer.session.peer = greeting.id
            self.peers = {**self.peers, greeting.id: peer}
            if earlier is not None:
                self._end_earlier(greeting.id, earlier)
        self._known(link)
        self._log_dedup.forget_at(link.address, time.monotonic() + _NEWS)
        link.peer = peer
        if peer.loop is self.home:
            return peer.accept(link, greeting, resumed=same)
        link.move(peer.loop)
        return peer.loop.call(functools.partial(peer.accept, link, greeting, resumed=same))

    def _objection(self, greeting: Greeting, rival: Peer | None, *, same: bool) -> str:
        """Why a client should not be let in, empty if it should. `rival`: another that has its id."""
        if greeting.id == self.options.id:
            return f"the id {greeting.id} is the server's own; give each communicator its own options"
        if self.closing and not same:
            return "the server is closing"
        if rival is not None and rival.link is not None:
            rival.loop.call(rival.probe)
            return (
                f"the id {greeting.id} is in use by another client, or by its predecessor that is not known yet to be "
                "gone: it is being asked; give each client its own options"
            )
        if not same and any(memory.budget.exceeded for memory in self._memories.values()):
            return "no room: too much of sessions that are over has not been taken; come again"
        return ""

    def _end_earlier(self, id: uuid.UUID, peer: Peer) -> None:
        """A client has come anew under its id: its earlier session is over."""
        self._tell(self.options.events.fin, id)
        peer.loop.call(peer.end, Closed(id, "it began anew"))

    def _refuse(self, link: Link, reason: str) -> None:
        self._complain(link, reason)
        self._known(link)
        link.connection.refuse(Code.REFUSED, reason)
        link.close()

    def _complain(self, link: Link, reason: str) -> None:
        reason = printable(reason)
        is_new = self._log_dedup.is_new(link.address, reason, time.monotonic())
        level = logging.WARNING if is_new else logging.DEBUG
        log.log(level, "%s: %s; the connection was closed", link.address, reason)

    def _reached(self, peer: Peer) -> None:
        self._up_since = time.monotonic()
        troubled = self._log_dedup.forget(self._where)
        log.log(logging.WARNING if troubled else logging.INFO, "%s: connected", self._where)

    def _retry(self, error: Exception) -> None:
        if None not in self.peers:
            return
        trouble = printable(str(error))
        if isinstance(error, Interrupted):
            log.info("%s: %s; connecting again", self._where, trouble)
        elif self._log_dedup.is_new(self._where, trouble):
            log.warning("%s: %s; trying again until it answers", self._where, trouble)
        now = time.monotonic()
        if now - self._up_since >= _STEADY or isinstance(error, Interrupted):
            self._attempt = 0
        self._up_since = math.inf
        self.home.at(now + backoff(self._attempt, self.options.connection), self._try)
        self._attempt += 1

    def _try(self) -> None:
        if None in self.peers:
            self._transport.open()

    @property
    def _where(self) -> str:
        return "{}:{}".format(*self.netloc)

    def _forget(self, peer: Peer, error: Closed, undelivered: int) -> None:
        key = peer.id if self.is_server else None
        self.undelivered += undelivered if self.closing else 0
        if self.peers.get(key) is not peer:
            return
        self.peers = {id: other for id, other in self.peers.items() if other is not peer}
        self.only = None
        if peer.id is not None:
            self._tell(self.options.events.fin, peer.id)  # before a `get` learns it
            self.home.baton.defer(self._inbox.finish, peer.id, error)
        if not (self.is_server or self.closing or peer.session.closing):
            self.only = self._new_peer(secrets.token_bytes(16))
            self.peers = {None: self.only}  # given up by time, not by anybody's wish
            return
        if not self.is_server:
            self.why_over = error
            self._close_inbox(self._closed() if self.closing else error)
        if self.closing and not self.peers:
            self._all_gone()

    def _tell(self, event: Callable[[uuid.UUID], object] | None, peer: uuid.UUID) -> None:
        if event is None:
            return
        self.home.baton.defer(_call_event, event, peer)

    def _crashed(self, error: BaseException) -> None:
        """A loop has ended by a bug of ours. Let nobody wait for it."""
        log.critical("netq: internal error; the communicator is closed", exc_info=error)
        closed = Closed(self.options.id, f"internal error: {error!r}")
        closed.__cause__ = error
        self._close_inbox(closed)
        self.closing = True
        for peer in self.peers.values():
            peer.loop.call(peer.end, closed)
        self._all_gone()


def _call_event(event: Callable[[uuid.UUID], object], peer: uuid.UUID) -> None:
    try:
        event(peer)
    except BaseException:  # the user's code, in our thread: it must not end the loop, not even by sys.exit
        log.exception("an event function failed for %s", peer)
