"""One peer, as its loop knows it: the session, the link that carries it at the moment, and what to do when
there is none. `id`, `open`, `inline` and `post` are for any thread; a user's thread that holds the baton may run
`flush` and `_exchange`; all else runs in the loop's thread.

    attach ──► handle … handle ──► detach ──► (attach again | expire) ──► end
"""

from __future__ import annotations

import functools
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from netq.errors import Closed, NetqError
from netq.io.loop import Loop, give_way
from netq.io.timers import Timer
from netq.options import ConnectionOptions
from netq.protocol.codec import Outgoing
from netq.protocol.events import Event, Failed, Finished, Lost, Opened
from netq.protocol.receiver import Receiver
from netq.protocol.session import Session
from netq.protocol.wire import Code, Greeting
from netq.runtime.link import Link

log = logging.getLogger("netq")

_GRACE = 10.0  # seconds for which a lost link may be a short one
EXPLAIN = 1.0  # seconds after which a close that waits says why
_LARGE = 64 * 1024  # bytes of a message that the loop's thread sends: `put` is not to wait for so many
_AHEAD = 256  # messages ahead of the loop's thread, from which who puts gives way to it
_FEW, _MANY = 4, 64  # messages under way, from which the next wait for company; messages that are enough company
_QUARRELS, _QUARREL = 3, 60.0  # superseded so often in so many seconds: by another process, not by our own late INI


@dataclass(frozen=True)
class Statistics:
    """What a communicator knows of one peer. Bytes are those of whole messages."""

    connected: bool
    address: str  # of the present or last link
    absent: float  # seconds since the last link was lost; 0 while connected
    queued: int  # messages that the peer has not acknowledged
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    arriving: int  # bytes of messages that have begun to come, and are not whole
    round_trip: float | None  # seconds, of the last heartbeat that was answered


class Interrupted(ConnectionAbortedError):
    """We begin the link anew; nothing is wrong with the peer or the network."""


class PeerListener(Protocol):
    """What a peer may ask of the communicator. Called in the peer's loop."""

    is_server: bool

    def opened(self, peer: Peer, *, resumed: bool) -> None:
        """Both have greeted."""

    def forgotten(self, peer: Peer, id: uuid.UUID) -> None:
        """It knows nothing of the session that it had under this id."""

    def finished(self, peer: Peer) -> None:
        """No more messages will come from it."""

    def detached(self, peer: Peer, error: Exception) -> None:
        """It has no link any more."""

    def ended(self, peer: Peer, error: Closed, undelivered: int) -> None:
        """Its session is over."""


class Peer:
    """The session with one peer, and its link."""

    def __init__(self, listener: PeerListener, loop: Loop, options: ConnectionOptions, session: Session) -> None:
        self.loop = loop
        self.baton = loop.baton
        self.session = session
        self.recall = functools.partial(loop.call, self.withdraw)  # for any thread
        self.over = False
        self.link: Link | None = None
        self._listener = listener
        self._options = options
        self._flushing = False
        self._absent_since = time.monotonic()
        self._patience: Timer | None = None  # runs while no link is open
        self._grace: Timer | None = None  # so does this: how long its room is kept for it
        self._clock: Timer | None = None  # of the link
        self._known: uuid.UUID | None = None  # the id that the user has been told of
        self._superseded: list[float] = []  # when, of late
        self._finishing = False  # our user has closed
        self._expected = False  # we close, and it was there then: a server waits for what it may still put
        self._farewell = False  # a client's: the server has closed, and takes what is still put
        self._undelivered = 0  # messages that have failed since
        self._address = ""
        session.wake = self._flush_soon
        session.request_release = functools.partial(loop.call, self.taken)

    @property
    def id(self) -> uuid.UUID | None:
        """The peer's id; None while a client has not reached its server."""
        return self.session.peer

    @property
    def open(self) -> bool:
        """Whether messages may still be put."""
        return not self.over and not self.session.closing

    # What the user wants.

    def post(self, message: Outgoing) -> None:
        """Queue a message, and send it: here and now if that can be, or when there is company for it. In any thread."""
        session, baton = self.session, self.baton
        outbox = session.outbox
        outbox.append(message)
        if 1 < len(outbox) < _MANY and self in baton.unflushed and not baton.needs_wake and message.size <= _LARGE:
            return  # it goes with those before it
        if not self.inline or message.size > _LARGE or message.audience:
            baton.flush_soon(self)
            if len(outbox) >= _AHEAD:
                give_way()
            return
        sender = session.senders.get(message.lane)
        if sender is not None and len(sender.sent) >= _FEW and len(outbox) < _MANY:
            baton.flush_later(self)
        elif not baton.try_run(self, self._exchange):
            baton.flush_soon(self)

    @property
    def inline(self) -> bool:
        """Whether users' threads may send: there is a link that allows that, and the session is not about to end."""
        link = self.link
        return link is not None and link.inline and link.connection.open and not self.session.closing

    def _exchange(self) -> None:
        """Send what waits, and take what the peer has acknowledged meanwhile. In any thread."""
        link = self.link
        if link is None or not link.inline:  # lost meanwhile
            self.baton.flush_soon(self)
            return
        many = len(self.session.outbox) >= _MANY
        self.baton.unflushed.pop(self, None)
        link.flush()
        if many:
            link.receive()
            self.baton.wake_poller()

    def flush(self) -> None:
        """Send what waits."""
        self.baton.unflushed.pop(self, None)
        self.session.drain()
        if self.session.closing or self.over:
            self._flush_soon()
        elif self.link is not None:
            self.link.flush()

    def repair(self) -> None:
        """A user's thread was interrupted while it sent or received: begin the link anew."""
        self.session.repair()
        if (link := self.link) is not None:
            link.connection.discard_input()
            self.detach(link, Interrupted("a signal handler has interrupted what was being sent or received"))
            link.close()

    def withdraw(self, message: Outgoing) -> None:
        """Its future is cancelled: free its memory, and tell the peer if it has begun to travel."""
        self.session.withdraw(message)
        if self.link is not None:
            self.link.keep()
        self._flush_soon()

    def taken(self, receiver: Receiver) -> None:
        """The user has taken messages."""
        if self.session.release_room(receiver):
            self._flush_soon()

    def finish(self) -> None:
        """Flush, say goodbye, end; harmless if that has begun."""
        if self._finishing:
            return
        self._finishing = True
        self.session.close()
        if self.link is not None and self.link.connection.open:
            self._expected = self._listener.is_server and not self.session.peer_closed
            self._flush_soon()
        else:
            self._wait()

    def cut_off(self, error: Closed) -> None:
        """End at once. If our user has closed and waits no longer, the peer is told: it is not to come back."""
        if self._finishing and self.link is not None:
            self.link.connection.refuse(Code.OVER, "closed before all was delivered")
        self.end(error)

    # What the link brings.

    def attach(self, link: Link) -> None:
        """Use this link; an older one is told why it is used no more."""
        if self.link is not None:
            self._drop(self.link, Code.SUPERSEDED, "a newer link has taken the session over")
        self.link = link
        self._address = link.address
        self._tick(link)

    def accept(self, link: Link, greeting: Greeting, *, resumed: bool) -> None:
        """Answer a client's greeting on a new link. Not `resumed`: it begins anew, and gets what waits for it."""
        if self.over:
            return self._drop(link, Code.REFUSED, "the session has just ended")
        resumed = resumed and self.session.begun  # not by a link that was lost before it could be
        if resumed and (objection := self._objection(greeting)):
            return self._drop(link, Code.REFUSED, objection)
        if not link.connection.closed:  # else it was lost meanwhile, and the session stays whose it was
            self.session.token = greeting.token
        self.attach(link)
        self.handle(link, link.connection.accept(self.session, greeting, resumed=resumed, now=time.monotonic()))
        return self._flush_soon()

    def probe(self) -> None:
        """Somebody says what cannot be while our link is alive: ask it."""
        if self.link is not None:
            self.link.connection.probe(time.monotonic())
            self._tick(self.link)
            self._flush_soon()

    def handle(self, link: Link, events: Sequence[Event]) -> None:
        """Do what the events of the link's connection ask for."""
        for event in events:
            match event:
                case Opened(_, resumed):
                    self._opened(link, resumed=resumed)
                case Failed(message, error):
                    failed = message.fail(
                        error or Closed(self._known, "it began anew while this message was on its way")
                    )
                    self._undelivered += failed and self._finishing
                case Finished(_, over):
                    self._finished(link, over=over)
                case Lost(error, code):
                    self._lost(link, error, code)

    def detach(self, link: Link, error: Exception) -> None:
        """The link is lost."""
        link.connection.detach()
        if self.link is link:
            self.link = None
            self._stop_clock()
            if self._patience is None:  # it was open; if not, the time runs on
                self._absent_since = time.monotonic()
                self._grace = self.loop.at(self._absent_since + _GRACE, self.session.reclaim)
                self._wait()
            if not self.over:
                self._listener.detached(self, error)

    def end(self, error: Closed) -> None:
        """The session is over: what is not delivered fails."""
        if self.over:
            return
        self.over = True
        self._absent_since = time.monotonic()
        if self.link is not None:
            self.link.keep()
        self.session.ended = True
        lost = [message for message in self.session.abandon() if not message.withdrawn]
        self._stop_waiting()
        self._stop_clock()
        link, self.link = self.link, None
        if link is not None and not self.session.closing:
            self._listener.detached(self, error)
        self._listener.ended(self, error, len(lost) + self._undelivered)
        for message in lost:  # whoever learns of it finds the listener in order, and may put again
            own = Closed(error.peer, error.why)  # each its own: whoever raises it adds a traceback to it
            own.__cause__ = error.__cause__
            message.fail(own)
        if link is not None:
            link.close()

    def statistics(self) -> Statistics:
        """Return the figures."""
        link = self.link
        connected = link is not None and link.connection.open
        return Statistics(
            connected=connected,
            address=self._address,
            absent=0.0 if connected else time.monotonic() - self._absent_since,
            queued=self.session.queued,
            messages_in=self.session.messages_in,
            messages_out=self.session.messages_out,
            bytes_in=self.session.bytes_in,
            bytes_out=self.session.bytes_out,
            arriving=self.session.arriving,
            round_trip=self.session.round_trip,
        )

    def _opened(self, link: Link, *, resumed: bool) -> None:
        self._stop_waiting()
        self._tick(link)  # from now on by the heartbeat
        if not resumed and self._known is not None:
            self._listener.forgotten(self, self._known)
        self._known = self.id
        self._expected = self._finishing and self._listener.is_server and not self.session.peer_closed
        self._listener.opened(self, resumed=resumed)
        if not resumed and self._farewell:  # the server that had closed is gone, and this is its successor
            self.session.close()
            self._flush_soon()

    def _finished(self, link: Link, *, over: bool) -> None:
        self._expected = False
        if over:
            self.session.closing = True
            self.end(Closed(self.id, "it has closed"))
        elif (
            self._listener.is_server
        ):  # a client that leaves is let go; a server that closes takes what its clients put
            self.session.closing = True
            self.handle(link, link.connection.close())
        else:
            self._farewell = True
        if not self.over:  # else the listener knows, and has told its user first
            self._listener.finished(self)

    def _lost(self, link: Link, error: Exception, code: Code) -> None:
        if code is Code.SUPERSEDED and self._is_quarrel():
            self.session.closing = True  # another has the session now: to come back would be a quarrel without end
            self.end(Closed(self.id, str(error)))
        elif code is Code.OVER:
            self.session.closing = True
            self.end(Closed(self.id, "it has closed"))
        elif self.link is link:
            if isinstance(error, NetqError):
                self._drop(link, Code.REFUSED, str(error))
            else:
                link.keep()
                link.close()
            self.detach(link, error)

    def _is_quarrel(self) -> bool:
        """Whether another process takes the session again and again, and not an INI of our own that came late."""
        now = time.monotonic()
        self._superseded = [*(then for then in self._superseded if now - then < _QUARREL), now]
        return len(self._superseded) >= _QUARRELS

    def _objection(self, greeting: Greeting) -> str:
        """Why this greeting of our own client should not have the session; empty if it should."""
        if greeting.token != self.session.token:
            return "another process has begun this session anew"
        if self.session.is_stale(greeting):
            return "this link is older than the session's last"
        if greeting.epoch != self.session.epoch and self.link is not None:
            self.probe()  # the client has not heard our last INI, or that link is the newer one
            return "the session has a link, and nothing has come on it yet: it is being asked"
        return ""

    def _drop(self, link: Link, code: Code, reason: str) -> None:
        link.keep()  # it parts for a while, and whoever put what it has may soon have it back
        link.connection.detach()
        link.connection.refuse(code, reason)
        link.close()

    def _wait(self) -> None:
        """Without a link: wait for one, but not for ever."""
        if self._patience is not None:
            self._patience.cancel()
        seconds, why = self._options.session_timeout, "no link for {:g} s (session_timeout)"
        if self.session.closing or self._farewell:
            seconds, why = self._options.linger, "no link within {:g} s (linger) after close"
        if self.session.closing and not self.session.due and not self._expected:
            self.end(Closed(self.id, "it has closed"))
        elif not self.over:
            if self.session.closing:
                self.loop.at(time.monotonic() + EXPLAIN, self._explain, seconds)
            error = Closed(self.id, why.format(seconds))
            self._patience = self.loop.at(time.monotonic() + seconds, self._expire, error)

    def _expire(self, error: Closed) -> None:
        """There is no link any more, and none will come."""
        if self._farewell:
            self.session.closing = True  # the server has closed: a client has nothing to come back to
        self.end(error)

    def _explain(self, seconds: float) -> None:
        """Say in the log why closing takes so long."""
        if not self.over and self.link is None:
            who = self.id or "the server"
            log.warning("%s: not connected; closing waits up to %g s (linger) for it to come back", who, seconds)

    def _tick(self, link: Link) -> None:
        now = time.monotonic()
        if self.link is link and now >= link.connection.deadline():
            self.handle(link, link.connection.tick(now))
            self._flush_soon()
        if self.link is link and not link.connection.closed:
            self._stop_clock()
            self._clock = self.loop.at(link.connection.deadline(), self._tick, link)

    def _stop_waiting(self) -> None:
        for timer in (self._patience, self._grace):
            if timer is not None:
                timer.cancel()
        self._patience = self._grace = None

    def _stop_clock(self) -> None:
        """Let the timer keep nothing of the link."""
        if self._clock is not None:
            self._clock.cancel()

    def _flush_soon(self) -> None:
        """Flush once for all that is put in one turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self.loop.call(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self.session.drain()
        if self.session.closing and not self.over:
            self._part()
        if self.link is not None:
            self.link.flush()

    def _part(self) -> None:
        """Say goodbye, if nothing is due any more: the last of it may have been withdrawn."""
        if self.link is not None and self.link.connection.open:
            self.handle(self.link, self.link.connection.close())
        elif not self.session.due and not self._expected:
            self.end(Closed(self.id, "it has closed"))
