"""One peer: its session, the link that carries it at the moment, and what to do when there is none.

    attach ──► handle … handle ──► detach ──► (attach again | expire) ──► end

Any thread may use `id`, `open`, `inline` and `post`. A user's thread that holds the baton may call `flush` and
`_exchange`. All else runs in the thread of the peer's loop.
"""

from __future__ import annotations

import functools
import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from netq.errors import Closed, NetqError, SecurityError
from netq.identity import Certificate, Protection
from netq.io.loop import Loop, give_way
from netq.io.timers import Timer
from netq.log import log
from netq.options import ConnectionOptions
from netq.protocol.codec import Outgoing
from netq.protocol.events import Event, Failed, Finished, Lost, Opened
from netq.protocol.receiver import Receiver
from netq.protocol.sender import SMALL
from netq.protocol.session import Session
from netq.protocol.wire import ANY_LANE, Code, Greeting
from netq.runtime.link import Link, certificates_of
from netq.runtime.statistics import Statistics
from netq.utils.secret import is_same_secret

_SHORT_LOSS = 10.0  # seconds after which a peer without a link gives its unused memory back
EXPLAIN = 1.0  # seconds after which a close that waits logs why
_QUIET = 60.0  # seconds after a lost link for which the next ones are no news for the log
_BACKLOG = 2**30  # bytes that wait for a peer: from so many on the log says so
_YIELD_FROM = 256  # messages that wait for the loop's thread: from so many on, `put` yields to it
# As in Nagle's algorithm: with so many messages unacknowledged, the next wait to be sent together, up to so many.
_FEW, _MANY = 4, 64
# Links superseded, and within how many seconds: then another process takes the session again and again. A late INI of
# our own supersedes a link only once.
_CONTESTS, _CONTEST_PERIOD = 3, 60.0
_TAKEOVERS = 4  # remembered, the last ones: the processes that had the id before them are not told


def longest_wait(options: ConnectionOptions, timeout: float | None) -> str:
    """Return how long a close waits for peers without a link, as text."""
    if timeout is not None and timeout < options.linger:
        return f"{timeout:g} s (timeout)"
    return f"{options.linger:g} s (linger)"


class Interrupted(ConnectionAbortedError):
    """We replace the link ourselves; nothing is wrong with the peer or the network."""


class SessionRefused(Exception):
    """A client, or its link, does not get the session, for this reason."""

    def __init__(self, reason: str, code: Code = Code.REFUSED) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True)
class Takeover:
    """Another process has got the id of a client, and the rest of its session. The text is for that client."""

    token: bytes  # of the client that had the id before
    successor: str  # address of the other process
    at: float  # seconds since 1970

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.at))
        return (
            f"another process ({self.successor}) has taken over this client's id at {when}, while its link was lost; "
            "give each client its own options, or its own certificate"
        )


class PeerListener(Protocol):
    """What a peer reports to the communicator, in the peer's loop."""

    is_server: bool

    def opened(self, peer: Peer, *, resumed: bool) -> None:
        """The handshake is over."""

    def restarted(self, peer: Peer, id: uuid.UUID) -> None:
        """The peer has lost the session that it had under this id."""

    def finished(self, peer: Peer) -> None:
        """No more messages will come from the peer."""

    def detached(self, peer: Peer, error: Exception) -> None:
        """The peer has lost its link."""

    def ended(self, peer: Peer, error: Closed) -> None:
        """The session is over."""


class Peer:
    """The session with one peer, and its present link.

    It has more attributes than others: each is a fact that outlives a link, and most steps (a loss, a takeover, a
    close) read facts of all the groups below. Objects for the groups would have this class as their only user.
    """

    def __init__(self, listener: PeerListener, loop: Loop, options: ConnectionOptions, session: Session) -> None:
        # The owner's wiring: fixed from the start.
        self.loop = loop
        self.baton = loop.baton
        self.session = session
        self.recall = functools.partial(loop.call, self.withdraw)  # for any thread
        self._listener = listener
        self._options = options
        # The present link, and what runs while there is one or none.
        self.link: Link | None = None
        self._flushing = False
        self._backlogged = False  # the log says that much waits
        self.address = ""
        self.origin = ""  # of the client that began the session (netq/runtime/pending_links.py)
        self.certificates: tuple[Certificate, ...] = ()  # by which this client has begun its session, if it has any
        self._protection: Protection | None = None  # of the last link
        self._sealing: Protection | None = None  # of the last link's connection
        self._link_valid_until = math.inf  # on the monotonic clock: then a certificate expires that the peer has shown
        self._link_lost_at = time.monotonic()  # infinity while a link is open
        self._quiet_until = -math.inf  # no loss of a link is logged until then
        self._takeovers: tuple[Takeover, ...] = ()  # a server's: the last ones, for those that had the id before
        self._superseded_at: list[float] = []  # when links were superseded lately
        self._expiry: Timer | None = None  # runs while no link is open: ends the session
        self._memory_timer: Timer | None = None  # runs then too: gives memory back
        self._heartbeat_timer: Timer | None = None  # for the next heartbeat of the link, or its timeout
        # The end of the session: which side has closed, and what that leaves undelivered.
        self.over = False
        self.is_barred = False  # our user has expelled it, and wants no message of it
        self._reported_id: uuid.UUID | None = None  # the id that was reported to the user
        self._finishing = False  # our user has closed the communicator
        self._close_timeout: float | None = None  # how long our user waits for that
        self._client_may_put = False  # we are a server that closes, and this client is connected
        self._server_closed = False  # at a client: the server has closed, and still takes what is put
        session.wake = self._flush_soon
        session.request_release = functools.partial(loop.call, self.taken)

    @property
    def id(self) -> uuid.UUID | None:
        """The peer's id; None while a client has not reached its server."""
        return self.session.peer

    @property
    def absent(self) -> float:
        """Seconds since the last link was lost; 0 while there is one. In any thread."""
        return max(0.0, time.monotonic() - self._link_lost_at)

    @property
    def open(self) -> bool:
        """Whether messages may still be put."""
        return not self.over and not self.session.closing

    # What the user asks for.

    def post(self, message: Outgoing) -> None:
        """Queue a message, and see that it is sent. In any thread. The first row that applies says when:

        a small one behind a few that wait     with those
        one to several peers                   with others: when an ACK comes, a user waits, or 1 ms has passed;
                                               the caller wakes the loop's thread, once for all peers
        a small one behind _FEW not            with others, as above
        acknowledged
        any other, if the link is inline       now, as much of it as the socket takes, if the baton is free
        any other                              by the loop's thread, soon
        """
        # First the append, then the look into `unflushed`, without the baton. A flush removes its entry there, and then
        # takes the outbox. So an entry that is still seen belongs to a flush that will find this message.
        session, baton = self.session, self.baton
        outbox = session.outbox
        outbox.append(message)
        link, is_small = self.link, message.size <= SMALL
        if 1 < len(outbox) < _MANY and is_small and self in baton.unflushed and not baton.needs_wake:
            return  # it is sent with those before it
        inline = link is not None and link.inline and link.connection.open and not session.closing
        if inline and len(outbox) < _MANY:
            if message.audience:
                baton.flush_later(self, more=True)
                return
            sender = session.senders.get(session.unordered if message.lane == ANY_LANE else message.lane)
            if is_small and sender is not None and len(sender.sent) >= _FEW:
                baton.flush_later(self)
                return
        if not (inline and baton.try_run(self._exchange)):
            baton.flush_soon(self)
        if len(outbox) >= _YIELD_FROM:
            give_way()

    @property
    def inline(self) -> bool:
        """Whether users' threads may send: the link allows that, and the session does not end."""
        link = self.link
        return link is not None and link.inline and link.connection.open and not self.session.closing

    def _exchange(self) -> None:
        """Send what waits. After a large batch, also receive: a thread that only puts takes its ACKs itself."""
        # Otherwise the loop's thread would have to take the ACKs, which means a change of threads for each batch. And
        # what comes with the ACKs may be a message for the thread that polls, so that one is woken.
        link, session = self.link, self.session
        if link is None or not link.inline:  # lost meanwhile
            self.baton.flush_soon(self)
            return
        many = len(session.outbox) >= _MANY
        self.baton.unflushed.pop(self, None)
        link.flush()
        if session.outbox:  # the socket is full
            self._drain()
        if many:
            link.receive()
            self.baton.wake_poller()

    def flush(self) -> None:
        """Send what waits."""
        self.baton.unflushed.pop(self, None)
        self._drain()
        if self.session.closing or self.over:
            self._flush_soon()
        elif self.link is not None:
            self.link.flush()

    def withdraw(self, message: Outgoing) -> None:
        """Free the memory of a cancelled message, and tell the peer if its first byte has left."""
        self.session.withdraw(message)
        if self.link is not None:
            self.link.keep()
        self._flush_soon()

    def taken(self, receiver: Receiver) -> None:
        """Note that the user has taken messages; tell the peer if it can send more."""
        if self.session.release_room(receiver):
            self._flush_soon()

    def move_out(self, receiver: Receiver) -> None:
        """Receive the rest of a message elsewhere than in the memory that a user has lent. With the baton."""
        if (link := self.link) is not None:
            if events := link.connection.move_out(receiver):
                self.loop.call(self.handle, link, events)
            return
        try:
            receiver.move_out()
        except MemoryError:
            receiver.evict()

    def finish(self, timeout: float | None) -> None:
        """Close the session in good order: flush, FIN, end. Harmless if that has begun. `timeout` is for the log."""
        if self._finishing:
            return
        self._finishing = True
        self._close_timeout = timeout
        self.session.close()
        if self.link is not None and self.link.connection.open:
            self._client_may_put = self._listener.is_server and not self.session.peer_closed
            self._flush_soon()
        else:
            self._start_expiry()

    def abort(self, error: Closed) -> None:
        """End at once. If our user has closed, tell the peer so that it does not come back."""
        if self._finishing and self.link is not None:
            self.link.connection.refuse(Code.OVER, "it has closed before all was delivered")
        self.end(error)

    # What links and events bring.

    def attach(self, link: Link) -> None:
        """Use this link. An older one is closed, and the peer gets the reason."""
        # The newer one wins. The older one is often half-open, as after a change of networks, and would look alive
        # until its heartbeat is over.
        if self.link is not None:
            self._drop(self.link, Code.SUPERSEDED, "a newer link has taken the session over")
        self.link = link
        self._link_valid_until = math.inf
        self.address = link.address
        self._tick(link)

    def accept(self, link: Link, greeting: Greeting, *, resumed: bool) -> None:
        """Answer a client's greeting on a new link. Without `resumed` the session begins anew, with what is queued."""
        resumed = resumed and self.session.begun  # False if its first link was lost before the session began
        try:
            self._check_link(greeting, resumed=resumed)
        except SessionRefused as refused:
            return self._drop(link, refused.code, str(refused))
        if not link.connection.closed and not resumed:  # otherwise the session keeps its client
            self._begin_with(link, greeting.token)
        self.attach(link)
        self.handle(link, link.connection.accept(self.session, greeting, resumed=resumed, now=time.monotonic()))
        return self._flush_soon()

    def _begin_with(self, link: Link, token: bytes) -> None:
        """Let the client of this link have the session from now on."""
        if self.session.begun and token != self.session.token:
            takeover = Takeover(self.session.token, link.address, time.time())
            self._takeovers = (*self._takeovers, takeover)[-_TAKEOVERS:]
            log.warning(
                "%s: another process (%s) has taken over this id, while its link was lost", self.id, link.address
            )
        self.session.token = token
        self.certificates = certificates_of(link)

    def takeover_from(self, token: bytes) -> Takeover | None:
        """Return how the client with this token has lost the id to another process, if it has. In any thread."""
        found = [takeover for takeover in self._takeovers if is_same_secret(takeover.token, token)]
        return found[-1] if found else None

    @property
    def grace_left(self) -> float:
        """Seconds for which another process does not get the id of this client, whose link is lost. In any thread."""
        if self.over or self.session.closing:
            return 0.0  # it has said goodbye
        return self._link_lost_at + self._options.takeover_grace - time.monotonic()

    @property
    def unused(self) -> bool:
        """Whether the client is absent, and no message was put or has begun to arrive since it began."""
        session = self.session
        some = session.messages_in or session.messages_out or session.arriving or session.due
        return self.link is None and not self.over and not some

    def end_if_unused(self) -> None:
        """End the session, if its client is absent and loses nothing."""
        if self.unused:
            self.end(Closed(self.id, "no message in its session, and there were too many such sessions"))

    def pause(self, reason: str) -> None:
        """Hold back what exceeds the window, also what begins now: drop the link, and tell the peer why."""
        link = self.link
        if link is not None:
            self._drop(link, Code.REFUSED, reason)
            self.detach(link, Interrupted(reason))
        self.session.hold()

    def is_loss_news(self) -> bool:
        """Return whether to log that the link is lost: not if that was done a short time ago."""
        now = time.monotonic()
        is_news = now >= self._quiet_until
        if is_news:
            self._quiet_until = now + _QUIET
        return is_news

    def resume(self) -> None:
        """End what `pause` has begun. Harmless without."""
        if self.session.is_held:
            self.session.let_go(connected=self.link is not None and self.link.connection.open)

    def expel(self, reason: str, is_barred: bool = False) -> None:
        """End the session, and tell the peer why. `is_barred`: the user wants none of its messages."""
        self.is_barred = is_barred
        link, error = self.link, Closed(self.id, reason)
        if link is not None:
            self._drop(link, Code.REFUSED, reason)
        self.end(error)

    def probe(self) -> None:
        """Probe our link, because another client claims what cannot be true while the link is alive."""
        if self.link is not None:
            self.link.connection.probe(time.monotonic())
            self._tick(self.link)
            self._flush_soon()

    def handle(self, link: Link, events: Sequence[Event]) -> None:
        """Handle the events of the link's connection."""
        for event in events:
            match event:
                case Opened(_, resumed):
                    self._opened(link, resumed=resumed)
                case Failed(message, error):
                    message.fail(error or Closed(self._reported_id, "it began anew while this message was on its way"))
                case Finished(_, over):
                    self._finished(link, over=over)
                case Lost(error, code):
                    self._lost(link, error, code)

    def detach(self, link: Link, error: Exception) -> None:
        """Drop the link, and start the timers of a session without a link."""
        # An older link that was replaced may fail later than its successor began, and changes nothing then.
        link.connection.detach()
        if self.link is link:
            self._protection = link.protection
            self._sealing = link.connection.protection
            self.link = None
            self._stop_heartbeat()
            if self._expiry is None:  # the link was open; otherwise the timers run already
                self._link_lost_at = time.monotonic()
                self._memory_timer = self.loop.at(self._link_lost_at + _SHORT_LOSS, self.session.reclaim)
                self._start_expiry()
            elif self._is_done:
                self.end(Closed(self.id, "it has closed"))
            if not self.over:
                self._listener.detached(self, error)

    def end(self, error: Closed) -> None:
        """End the session; undelivered messages fail."""
        if self.over:
            return
        # `over` is first, since what follows may lead here again. The link copies what it holds before any future
        # fails: from then on its user may change the data, and the link may still send a part of it. The messages fail
        # last, when the endpoint knows of the end.
        self.over = True
        self._link_lost_at = time.monotonic()
        if self.link is not None:
            self.link.keep()
        self.session.drain()  # while it still accepts messages: those that were put fail with this error, too
        self.session.ended = True
        lost = [message for message in self.session.abandon() if not message.withdrawn]
        self._stop_expiry()
        self._stop_heartbeat()
        link, self.link = self.link, None
        if link is not None and not self.session.closing:
            self._listener.detached(self, error)
        self._listener.ended(self, error)
        for message in lost:  # a callback may put again, and finds the session ended
            own = Closed(error.peer, error.why)  # one for each: raising an error adds a traceback to it
            own.__cause__ = error.__cause__
            message.fail(own)
        if link is not None:
            link.close()

    def statistics(self) -> Statistics:
        """Return the figures."""
        link = self.link
        connected = link is not None and link.connection.open
        protection = self._protection if link is None else link.protection
        sealing = self._sealing if link is None else link.connection.protection
        return Statistics(
            connected=connected,
            address=self.address,
            absent=0.0 if connected else self.absent,
            queued=self.session.queued,
            messages_in=self.session.messages_in,
            messages_out=self.session.messages_out,
            bytes_in=self.session.bytes_in,
            bytes_out=self.session.bytes_out,
            arriving=self.session.arriving + (0 if link is None else link.connection.arriving),
            expected=self.session.expected,
            waits=self.session.is_stopped,
            security=protection and protection.security,
            seal=sealing and sealing.security,
            round_trip=self.session.round_trip,
        )

    def _opened(self, link: Link, *, resumed: bool) -> None:
        self._stop_expiry()
        self._link_lost_at = math.inf
        self._tick(link)  # from now on for the heartbeat
        # After that: a link that expires now has opened first. The wall clock counts now, as it did in the handshake:
        # one that is set later ends no link.
        left = min((certificate.not_after - time.time() for certificate in certificates_of(link)), default=math.inf)
        self._link_valid_until = time.monotonic() + left
        if not resumed and self._reported_id is not None:
            self._listener.restarted(self, self._reported_id)
        self._reported_id = self.id
        self._client_may_put = self._finishing and self._listener.is_server and not self.session.peer_closed
        self._listener.opened(self, resumed=resumed)
        if not resumed and self._server_closed:  # the server that had closed has ended, and this is its successor
            self.session.close()
            self._flush_soon()

    def _finished(self, link: Link, *, over: bool) -> None:
        self._client_may_put = False
        if over:
            self.session.closing = True
            self.end(Closed(self.id, "it has closed"))
        elif self._listener.is_server:  # lets a client that closes go
            self.session.closing = True
            self.handle(link, link.connection.close())
        else:  # a server that closes still takes what its clients put
            self._server_closed = True
        if not self.over:  # otherwise the listener knows already, and has reported it
            self._listener.finished(self)

    def _lost(self, link: Link, error: Exception, code: Code) -> None:
        if code is Code.SUPERSEDED and self._is_contested():
            self.session.closing = True  # another process has the session: taking it back would never end
            self.end(Closed(self.id, str(error)))
        elif code is Code.OVER:
            self.session.closing = True
            self.end(Closed(self.id, str(error)))
        elif self.link is link:
            if isinstance(error, NetqError):
                self._drop(link, Code.REFUSED, str(error))
            else:
                link.keep()
                link.close()
            self.detach(link, error)

    def _is_contested(self) -> bool:
        """Return whether another process takes the session repeatedly. Once may be a late INI of our own."""
        now = time.monotonic()
        self._superseded_at = [*(then for then in self._superseded_at if now - then < _CONTEST_PERIOD), now]
        return len(self._superseded_at) >= _CONTESTS

    def _check_link(self, greeting: Greeting, *, resumed: bool) -> None:
        """Raise SessionRefused if the session does not take a new link with this greeting."""
        if self.over:
            raise SessionRefused("the session has just ended")
        if not resumed:
            return
        if greeting.token != self.session.token:
            raise SessionRefused("another process has begun this session anew")
        if self.session.is_stale(greeting):
            raise SessionRefused("this link is older than the session's last")
        if greeting.epoch != self.session.epoch and self.link is not None:
            self.probe()  # our last INI was lost, or the present link is the newer one
            raise SessionRefused("the session has a link, and nothing has come on it yet: it is being asked")

    def _drop(self, link: Link, code: Code, reason: str) -> None:
        link.keep()  # its close takes a while, and the sender of its bytes may want the memory earlier
        link.connection.refuse(code, reason)
        link.close()

    def _start_expiry(self) -> None:
        """Start the timer that ends a session without a link."""
        # Three cases. A session in use waits `session_timeout` for its peer. One that is closing at either side waits
        # only `linger`, and only if something is still to be delivered, the client may put more, or a client's link is
        # in its handshake: the server may have begun the session, and needs the goodbye. Else it ends now.
        if self._expiry is not None:
            self._expiry.cancel()
        seconds, why = self._options.session_timeout, "no link for {:g} s (session_timeout)"
        if self.session.closing or self._server_closed:
            seconds, why = self._options.linger, "no link within {:g} s (linger) after close"
        if self._is_done:
            self.end(Closed(self.id, "it has closed"))
        elif not self.over:
            if self.session.closing and not self._listener.is_server:  # a server says it once for all its clients
                self.loop.at(time.monotonic() + EXPLAIN, self._explain)
            error = Closed(self.id, why.format(seconds))
            self._expiry = self.loop.at(time.monotonic() + seconds, self._expire, error)

    @property
    def _is_done(self) -> bool:
        """Whether a session that closes, and has no link, has nothing to wait for."""
        return self.session.closing and self.link is None and not self.session.due and not self._client_may_put

    def _expire(self, error: Closed) -> None:
        """End the session, because no link came in time."""
        if self._server_closed:
            self.session.closing = True  # the server has closed: a client has no server to come back to
        self.end(error)

    def _explain(self) -> None:
        """Log why closing takes so long."""
        is_open = self.link is not None and self.link.connection.open  # a link in its handshake may be hopeless
        if not (self.over or is_open):
            longest = longest_wait(self._options, self._close_timeout)
            log.warning("%s: not connected; closing waits up to %s for it to return", self.id or "the server", longest)

    def _tick(self, link: Link) -> None:
        now = time.monotonic()
        if self.link is link and link.connection.open and now >= self._link_valid_until:
            whose = "client" if self._listener.is_server else "server"
            error = SecurityError(f"the {whose}'s certificate has expired; renew it, and the session goes on")
            self._lost(link, error, Code.REFUSED)
        elif self.link is link and now >= link.connection.deadline():
            self.handle(link, link.connection.tick(now))
            self._flush_soon()
        if self.link is link and not link.connection.closed:
            self._stop_heartbeat()
            self._heartbeat_timer = self.loop.at(link.connection.deadline(), self._tick, link)

    def _stop_expiry(self) -> None:
        for timer in (self._expiry, self._memory_timer):
            if timer is not None:
                timer.cancel()
        self._expiry = self._memory_timer = None

    def _stop_heartbeat(self) -> None:
        """Cancel the timer, so that it keeps no reference to the link."""
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()

    def _flush_soon(self) -> None:
        """Flush in the loop's thread, once for all that is put in one turn."""
        if not self._flushing:
            self._flushing = True
            self.loop.call(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._drain()
        if self.session.closing and not self.over:
            self._say_goodbye()
        if self.link is not None:
            self.link.flush()

    def _drain(self) -> None:
        """Queue what was put. Log once that much waits, until most of that has left."""
        self.session.drain()
        behind = self.session.bytes_behind
        if behind < _BACKLOG // 2:
            self._backlogged = False
        elif behind > _BACKLOG and not self._backlogged:
            self._backlogged = True
            log.warning(
                "%s: more than 1 GiB waits to be sent to it, and is kept in memory (queue_bytes bounds it); wait for "
                "the futures of put",
                self.id or "the server",
            )

    def _say_goodbye(self) -> None:
        """Send FIN if all is delivered: the last message may have been withdrawn."""
        if self.link is not None and self.link.connection.open:
            self.handle(self.link, self.link.connection.close())
        elif self._is_done:
            self.end(Closed(self.id, "it has closed"))
