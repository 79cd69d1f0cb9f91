"""The loops' side of a communicator: the table of peers, new links, and what events mean for the user.

netq/core.py makes and drives it. Transports and links call it as their LinkListener (netq/runtime/link.py), peers as
their PeerListener (netq/runtime/peer.py), each in the thread of its loop. Each peer belongs to one loop, and only that
loop touches its session. The table of peers, the transport, and links that have not finished the handshake belong to
the first loop, `home`, which alone changes the table. Any thread may look a peer up, and gets all by `every_peer`.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from netq.errors import Closed, strip_tracebacks
from netq.identity import Certificate
from netq.io.baton import StepBroken
from netq.io.condition import LONGEST, Condition
from netq.io.loop import Loop
from netq.io.process_end import not_at_end
from netq.io.timers import Timer
from netq.log import log
from netq.log import thread as log_thread
from netq.options import CommunicatorOptions, NetworkLocation, Purpose, check_put_merge
from netq.protocol.connection import Connection
from netq.protocol.destination import Destination
from netq.protocol.events import Event, Hello, Lost
from netq.protocol.flow_control import CREDIT, Budget
from netq.protocol.memory import KEEP, Memory
from netq.protocol.receiver import Receiver
from netq.protocol.session import Session
from netq.protocol.wire import Code, Greeting
from netq.runtime.inbox import Inbox
from netq.runtime.link import Link, LinkListener, Transport, certificates_of
from netq.runtime.log_dedup import LogDedup
from netq.runtime.peer import EXPLAIN, Peer, SessionRefused, longest_wait
from netq.runtime.pending_links import PendingLinks, origin_of
from netq.runtime.reconnect import Reconnector
from netq.runtime.stalls import PERIOD, AbsentPeers, FullMemory
from netq.runtime.undelivered import Undelivered
from netq.security.revocation import RevocationList
from netq.security.seal import NewConnection, sealed_connections
from netq.text import printable
from netq.utils.secret import is_same_secret, new_token
from netq.utils.stream import Stream

_LOG_TIME = 1.0  # seconds for which `close` waits for the log's handlers, which are the user's
_QUIET = 60.0  # seconds for which the log stays quiet about a host after one of its clients is admitted
_REVOCATION_PERIOD = 2.0  # seconds after which the list of revoked certificates is looked at again
_SWEEP_PERIOD = 10.0  # seconds after which old sessions that were never used end
_MOST_UNUSED = 1024  # absent sessions without a message: some 10 MiB
_MOST_ALIKE = 8  # ids with one hash: clients can choose them so, and each table of peers would search all of them
_UNUSED_TIME = 60.0  # seconds for which such a session waits for its client: the first message may have been cut
_EVENT_LOOP_TIME = 1.0  # seconds in which an asyncio event loop that has polled stops to watch our descriptor
TransportFactory = Callable[[LinkListener, Loop], Transport]


class Endpoint:
    """Links and peers of a communicator. A server has a peer for each client; a client has one, its server.

    It has more attributes than others: it is where the options, the loops, the transport and the peers meet.
    """

    def __init__(
        self, options: CommunicatorOptions, purpose: Purpose, inbox: Inbox, transport: TransportFactory
    ) -> None:
        self.options = options
        self.is_server = purpose is Purpose.SERVER
        self._revoked = _revocation_lists(options) if self.is_server else []
        self._new_connection: NewConnection = Connection
        if options.seal is not None:
            check_put_merge(options, "sealing")
            self._new_connection = sealed_connections(options.seal, is_client=not self.is_server)
        # The loops, each with memory for messages; links are spread over them.
        self._inbox = inbox
        inbox.advance = self._advance
        self.loops = [
            Loop(
                f"netq-{options.id.hex[:8]}-{n}",
                self._crashed,
                shared=options.workers == 1,
                serve=inbox.serve_waiters,
                waiters=inbox.waiters,
                lock=inbox.lock,
            )
            for n in range(options.workers)
        ]
        self.home = self.loops[0]
        share = options.connection.memory // options.workers
        self._memories = {loop: Memory(min(KEEP, share // 4), Budget(share)) for loop in self.loops}
        self._full = {loop: FullMemory(loop, memory.budget) for loop, memory in self._memories.items()}
        self._absent = AbsentPeers(inbox)
        self._turn = itertools.cycle(self.loops)
        # The end of the communicator.
        self.closing = False  # the user has closed
        self.all_ended = False  # the communicator closes, and has no peers left
        self._end_condition = Condition()  # of the same
        self._unattended = False  # it closes in the background: no thread waits for its end
        self.ended_by: Closed | None = None  # what ended a client's session for good, or this communicator by itself
        self.undelivered = Undelivered(self.home)
        for loop in self.loops:
            loop.baton.ledger = self.undelivered
        # The peers, and links that have none yet.
        self.peers: dict[uuid.UUID | None, Peer] = {}  # by id; a client's server by None
        self.only: Peer | None = None  # a client's server
        self._handshaking: dict[Link, Timer | None] = {}  # with the timer of the handshake
        self._pending_links = PendingLinks()  # bounds them
        self._unused: dict[
            Peer, float
        ] = {}  # absent, without any message: the first to go. Since when; the oldest first
        self._barred: dict[uuid.UUID, tuple[float, str]] = {}  # clients that are refused: until when, and why
        self._sessions: Counter[str] = Counter()  # a server's, by origin
        self._hashes: Counter[int] = Counter()  # of the ids of a server's sessions
        self._log_dedup = LogDedup()
        self.reconnector = Reconnector(self.home, options.connection, lambda: self._address, self._open_link)
        if not self.is_server:
            self.only = self._new_peer(new_token())
            self.peers = {None: self.only}
        self._start(transport)

    @property
    def netloc(self) -> NetworkLocation:
        """Where the server listens."""
        return self._transport.netloc

    # For the communicator, in any thread.

    def every_peer(self) -> list[Peer]:
        """Return the peers."""
        return list(self.peers.values())  # one step of the interpreter: the table does not change meanwhile

    def close(self, timeout: float | None, *, kept: bool) -> int:
        """Let each peer finish within `timeout`, then end everything. Return how many messages were not delivered.

        Logs those that were lost unseen; `kept` is that of Undelivered.text.
        """
        # The transport stays open until the peers have ended: one that has lost its link may come back for what it has
        # still to get. The loops end last; a second is what their links take at most to send their last bytes.
        self.home.ask(self.begin_to_close, timeout)
        if not self._end_condition.wait(lambda: self.all_ended, timeout):
            for loop in self.loops:
                loop.ask(self._abort, loop)
        self.home.ask(self._shut)
        for loop in self.loops:
            loop.stop(within=1.0)
            loop.join()
        self._tell_lost(kept=kept)
        log_thread.flush(_LOG_TIME if timeout is None else min(timeout, _LOG_TIME))
        return self.undelivered.count

    def close_at_end(self) -> None:
        """Close at the end of the process; harmless in a fork."""
        if not self.home.baton.forked:
            not_at_end(self.close_at_end)  # now: an interrupted close is not begun again
            self.close(self.options.connection.linger, kept=True)
            log_thread.flush(_LOG_TIME)  # however short it lingers: no thread emits lines later

    def _tell_lost(self, *, kept: bool) -> None:
        if lost := self.undelivered.text(self._address, kept=kept):
            log.warning("%s; the futures of put, which say why, were not looked at", lost)

    def close_unattended(self) -> None:
        """Close in the background, as `close(None)` does. Never waits: for finalizers, which may interrupt anything."""
        self.home.call(self._close_unattended)

    @property
    def over(self) -> bool:
        """Whether all loops have ended."""
        return all(loop.baton.over for loop in self.loops)

    def _start(self, transport: TransportFactory) -> None:
        try:
            self._transport = transport(self, self.home)
            self._transport.open()
            self._run()
        except BaseException:
            for loop in self.loops:
                loop.end()
            log_thread.flush(_LOG_TIME)
            raise

    def _run(self) -> None:
        try:
            self._watch_revocations()
            self._sweep()
            for loop in self.loops:
                self._trim_memory(loop)
                self._watch_stalls(loop)
                loop.start()
        except BaseException:  # most likely a signal handler's
            self.home.call(self._transport.close)
            raise

    def begin_to_close(self, timeout: float | None) -> None:
        """Let each peer finish. In the first loop; `timeout` is how long the caller waits for that."""
        self.closing = self.undelivered.closing = True
        for peer in self.every_peer() if timeout != 0 else ():
            peer.loop.call(peer.finish, timeout)
        if not self.peers:
            self._finish_closing()
        elif self.is_server:
            self.home.at(time.monotonic() + EXPLAIN, self._explain, timeout)

    def _abort(self, loop: Loop) -> None:
        """End the peers of this loop at once."""
        for peer in self.every_peer():
            if peer.loop is loop:
                peer.abort(Closed(peer.id, "closed before all was delivered"))

    def _explain(self, timeout: float | None) -> None:
        """Log why closing takes so long."""
        if absent := [peer.id for peer in self.every_peer() if peer.link is None and not peer.over]:
            log.warning(
                "%s%s: not connected; closing waits up to %s for their return",
                absent[0],
                f" and {len(absent) - 1:,} other client{'s' * (len(absent) > 2)}" if len(absent) > 1 else "",
                longest_wait(self.options.connection, timeout),
            )
        if connected := sum(peer.link is not None for peer in self.every_peer()):
            log.warning(
                "closing waits%s for %d client%s to disconnect; without a `get` in another thread it takes no more "
                "than `window` and `memory` allow%s",
                "" if timeout is None else f" up to {timeout:g} s",
                connected,
                "s" * (connected > 1),
                "; close(timeout=...) waits no longer than that" if timeout is None else "",
            )

    @property
    def is_short(self) -> bool:
        """Whether a message that has begun waits for memory."""
        return any(memory.budget.is_short for memory in self._memories.values())

    def expel(self, id: uuid.UUID, reason: str, pause: float) -> None:
        """End the session of a client. With a pause, in seconds, drop its messages, and refuse it for so long."""
        if pause:
            self.home.call(self._bar, id, reason, pause)
        if (peer := self.peers.get(id)) is not None:
            peer.loop.call(peer.expel, reason, pause > 0)

    def _bar(self, id: uuid.UUID, reason: str, pause: float) -> None:
        self._barred[id] = time.monotonic() + pause, f"refused for {pause:g} s: {reason}"

    def _advance(self, keys: tuple[int, ...]) -> None:
        """Let these peers, for which a `get` waits, send a message that waits for memory. For the inbox."""
        if self.is_short:
            for id in map(_id_of, keys):
                peer = self.peers.get(id) if self.is_server else self.only
                if peer is not None and peer.session.waits:
                    peer.loop.call(peer.session.advance)

    def lend(self, plan: Callable[[int], Iterator[memoryview]], peers: tuple[uuid.UUID, ...]) -> Destination:
        """Receive the first large message of these peers that begins from now on where `plan` says, see Destination.

        If several threads lend memory, that of the first is used: it gets the message.
        """
        memory, destination = self._memories[self.home], Destination(plan, peers)
        memory.destination = memory.destination or destination
        return destination

    def recall(self, destination: Destination, taken: Stream | bytes | None) -> None:
        """Receive nothing more into a destination, and move out what is there, unless it is the message `taken`."""
        recall = functools.partial(self._recall, destination)
        while destination.stream is None and not self.home.baton.try_hold(recall, LONGEST):
            pass
        if (stream := destination.stream) is not None:
            if stream is taken:
                stream.accept()
            else:
                stream.copy_out()

    def _recall(self, destination: Destination) -> None:
        memory = self._memories[self.home]
        if memory.destination is destination:
            memory.destination = None
        peer = self.peers.get(destination.peer) if self.is_server else self.only
        for receiver in [] if peer is None else [*peer.session.receivers.values()]:
            if receiver.direct is destination and peer is not None:
                peer.move_out(receiver)

    def _finish_closing(self) -> None:
        self._close_inbox(self._closed())
        self.all_ended = True
        self._end_condition.notify()
        if self._unattended:
            self.home.call(self._end_unattended)

    def _close_unattended(self) -> None:
        seconds = _EVENT_LOOP_TIME if self.home.baton.event_loop_polls else 0.0
        self.home.at(time.monotonic() + seconds, self._begin_unattended)

    def _begin_unattended(self) -> None:
        self._unattended = True
        self.begin_to_close(None)

    def _end_unattended(self) -> None:
        self._shut()
        for loop in self.loops:
            loop.stop(within=1.0)
        not_at_end(self.close_at_end)
        self._tell_lost(kept=True)

    def _close_inbox(self, error: Closed) -> None:
        self.home.baton.defer(self._inbox.close, error)

    def _closed(self) -> Closed:
        return Closed(self.options.id, "this communicator is closed")

    def _shut(self) -> None:
        self._transport.close()
        for link in list(self._handshaking):
            self._refuse(link, "the server is closing")
        self._close_inbox(self._closed())

    # For links and transports (netq/runtime/link.py, LinkListener), in a link's loop.

    def connect(self) -> Connection:
        """Return a connection for a new link; a client's has its session already."""
        peer = self.peers.get(None)  # a server's link has no peer yet, and a closed client has no peer any more
        session = None if peer is None else peer.session
        return self._new_connection(self.options.id, self.options.connection, time.monotonic(), session)

    def has_room(self) -> bool:
        """Return whether a server can add a link; otherwise leave its connection in the listen queue."""
        return not self._pending_links.is_full(time.monotonic())

    def attach(self, link: Link) -> None:
        """Use a new link: a client's at once, a server's after the handshake."""
        if self.is_server:
            dropped = self._pending_links.add(link, time.monotonic())
            self._handshaking[link] = None
            if dropped is not None:
                self._turn_away(dropped)
            if dropped is not link:
                self._watch_handshake(link)
        elif None in self.peers:
            link.peer = self.peers[None]
            self.peers[None].attach(link)
            link.flush()
        else:
            link.close()

    def deliver(self, link: Link, events: Sequence[Event]) -> None:
        """Hand the events to the link's peer."""
        if isinstance(link.peer, Peer):
            link.peer.handle(link, events)
            return
        match events[-1]:  # a Hello before a Lost needs no answer
            case Hello(greeting):
                self.home.call(self._admit, link, greeting)  # not now: the link may move to another loop, and is in use
            case Lost(error):
                self._refuse(link, str(error))

    def lost(self, link: Link | None, error: Exception) -> None:
        """Drop a link; a client reconnects."""
        strip_tracebacks(error)
        if link is None:
            self._retry(error)
        elif isinstance(link.peer, Peer):
            link.peer.detach(link, error)
        else:
            self._handshake_done(link)
            self._log_refusal(link, str(error))

    # For peers (netq/runtime/peer.py, House), in a peer's loop.

    def opened(self, peer: Peer, *, resumed: bool) -> None:
        """Report a new session to the user."""
        if not self.is_server:
            self.home.call(self.reconnector.connected, peer.address)
        if not resumed and peer.id is not None:
            hold = self._inbox.hold()  # the user gets the event before the first message
            self.home.baton.defer(self._inbox.expect, peer.id)
            self._run_event(self.options.events.ini, peer.id)
            self.home.baton.defer(self._inbox.release, hold)

    def restarted(self, peer: Peer, id: uuid.UUID) -> None:
        """Report the earlier session as closed. A `get(id)` goes on waiting if the peer has the same id again."""
        level = logging.INFO if self.is_server else logging.WARNING
        log.log(level, "%s: it began anew; what it had taken and not answered may be lost with it", id)
        self._session_over(id)
        if peer.id != id:
            self.home.baton.defer(self._inbox.finish, id, Closed(id, "it began anew, under another id"))

    def finished(self, peer: Peer) -> None:
        """Report that no more messages come from the peer."""
        error = Closed(peer.id, "it has closed")
        if not self.is_server:
            self._close_inbox(self._closed() if self.closing else error)
        elif peer.id is not None:
            self.home.baton.defer(self._inbox.finish, peer.id, error)

    def detached(self, peer: Peer, error: Exception) -> None:
        """Log the lost link; a client reconnects."""
        if not self.is_server:
            self.home.call(self._retry, error)
        elif not (self.closing or peer.session.closing):
            level = logging.INFO if peer.is_loss_news() else logging.DEBUG
            log.log(level, "%s: lost (%s); its session waits for it", peer.id, error)
            if peer.unused:
                self.home.call(self._bound_unused, peer)

    def ended(self, peer: Peer, error: Closed) -> None:
        """Forget the peer."""
        if self.home.is_current:
            self._forget(peer, error)
        else:
            self.home.call(self._forget, peer, error)

    # In the first loop.

    def _new_peer(self, token: bytes) -> Peer:
        loop = next(self._turn) if self.is_server else self.home
        session = Session(token, self.options.connection, self._memories[loop], self._inbox.arrived)
        session.is_awaited = self._inbox.awaits
        return Peer(self, loop, self.options.connection, session)

    def _trim_memory(self, loop: Loop) -> None:
        """Give back memory that no message has used for a heartbeat."""
        self._memories[loop].age()
        loop.at(time.monotonic() + self.options.connection.heartbeat, self._trim_memory, loop)

    def _sweep(self) -> None:
        """Forget what has become old."""
        self.undelivered.fold()
        self._end_old_unused()
        now = time.monotonic()
        self._barred = {id: barred for id, barred in self._barred.items() if barred[0] > now}
        self.home.at(time.monotonic() + _SWEEP_PERIOD, self._sweep)

    def _watch_stalls(self, loop: Loop) -> None:
        """Say in the log why messages do not come."""
        self._full[loop].look(self.every_peer())
        if loop is self.home:
            loop.baton.defer(self._absent.look, self.every_peer())
        loop.at(time.monotonic() + PERIOD, self._watch_stalls, loop)

    def _watch_revocations(self) -> None:
        """End the sessions of clients whose certificates were revoked meanwhile."""
        if not self._revoked:
            return
        for revoked in self._revoked:
            revoked.refresh()
        for peer in self.every_peer():
            for certificate in filter(self._is_revoked, peer.certificates):
                peer.loop.call(peer.expel, _revoked(certificate))
        self.home.at(time.monotonic() + _REVOCATION_PERIOD, self._watch_revocations)

    def _watch_handshake(self, link: Link) -> None:
        """Drop a link that does not finish the handshake in time."""
        if link in self._handshaking and (events := link.connection.tick(time.monotonic())):
            self.deliver(link, events)
        if link in self._handshaking:
            self._handshaking[link] = self.home.at(link.connection.deadline(), self._watch_handshake, link)

    def _handshake_done(self, link: Link) -> None:
        """Stop the timer of the handshake, and forget the link here."""
        self._pending_links.remove(link)
        if timer := self._handshaking.pop(link, None):
            timer.cancel()

    def _turn_away(self, link: Link) -> None:
        """Drop a link in its handshake, because too many are in theirs."""
        # Without a FIN: a link with nothing to send ends at once, and frees its descriptor.
        self._log_refusal(link, "too many connections are in their handshake, and this one is slow or one too many")
        self._handshake_done(link)
        link.connection.detach()
        link.close()

    def _bound_unused(self, peer: Peer) -> None:
        """End the oldest of the sessions that were never used, if there are too many."""
        # Anyone who reaches a server without client certificates can begin sessions, and leave them to
        # `session_timeout`. A session without a message loses nothing by its end: its client begins another one.
        self._unused.pop(peer, None)
        self._unused[peer] = time.monotonic()
        if len(self._unused) > _MOST_UNUSED:
            self._end_unused(next(iter(self._unused)))

    def _end_unused(self, peer: Peer) -> None:
        del self._unused[peer]
        peer.loop.call(peer.end_if_unused)

    def _end_old_unused(self) -> None:
        """End the sessions that were never used, and whose client has not come back in time."""
        for peer, since in list(self._unused.items()):
            if time.monotonic() - since < _UNUSED_TIME:
                break
            self._end_unused(peer)

    def _admit(self, link: Link, greeting: Greeting) -> None:
        if link not in self._handshaking:
            return None  # lost meanwhile
        try:
            peer, resumed = self._session_for(link, greeting)
        except SessionRefused as refused:
            return self._refuse(link, str(refused), refused.code)
        self._pending_links.finished(link, time.monotonic())
        self._handshake_done(link)
        self._log_dedup.forget_at(link.address, time.monotonic() + _QUIET)
        link.peer = peer
        if peer.loop is self.home:
            return peer.accept(link, greeting, resumed=resumed)
        link.move(peer.loop)
        return peer.loop.call(functools.partial(peer.accept, link, greeting, resumed=resumed))

    def _session_for(self, link: Link, greeting: Greeting) -> tuple[Peer, bool]:
        """Return the peer of a client that greets, and whether it resumes its session. Raises SessionRefused."""
        # Who is this client? The id says which session it claims, and the token proves that it is the process that had
        # it (docs/explanation/design.md, "An id is claimed, a token proves it"):
        #
        #     same             it resumes its session
        #     proven only      it is that process, and has begun anew with another server meanwhile
        #     neither          another process: admitted unless the session has a link, or has just lost it
        #
        # While we close, a client that has begun anew is refused. Its old session is ended here, or the close would
        # wait for a client that will never resume it.
        #
        # With mutual TLS, or seals, the certificate names the client. A client that has renewed its certificate resumes
        # with the new one.
        certificates = certificates_of(link)
        for certificate in certificates:
            self._check_identity(greeting, certificate)
        peer = self.peers.get(greeting.id)
        proven = peer is not None and not peer.over and is_same_secret(peer.session.token, greeting.token)
        same = proven and peer is not None and not peer.session.restarted_elsewhere(greeting)
        if peer is not None and proven and not same and self.closing:
            peer.loop.call(peer.end, Closed(greeting.id, "it began anew"))
        rival = None if proven else peer
        if rival is not None and (takeover := rival.takeover_from(greeting.token)):
            raise SessionRefused(str(takeover), Code.OVER)
        self._check_claim(greeting, rival, same=same, certified=bool(certificates))
        origin = origin_of(link.address)
        if peer is None:
            self._make_place(greeting.id, origin)
        if peer is None or peer.over or (peer.session.closing and not same):
            earlier, peer = peer, self._new_peer(greeting.token)
            peer.session.peer = greeting.id
            peer.origin = origin
            self._sessions[origin] += 1
            self._hashes[hash(greeting.id)] += 1
            self.peers[greeting.id] = peer
            if earlier is not None:
                self._end_earlier(greeting.id, earlier)
        peer.certificates = certificates
        return peer, same

    def _check_identity(self, greeting: Greeting, certificate: Certificate) -> None:
        """Raise SessionRefused unless this certificate proves the claimed id."""
        if certificate.identity is None:
            raise SessionRefused(
                "its certificate names no client; expected one subject alternative name urn:uuid:…, as `netq certs "
                "issue` makes it"
            )
        if certificate.identity != greeting.id:
            raise SessionRefused(
                f"it claims the id {greeting.id}, but its certificate is that of {certificate.identity}"
            )
        if self._is_revoked(certificate):
            raise SessionRefused(_revoked(certificate))

    def _is_revoked(self, certificate: Certificate) -> bool:
        return any(certificate.serial in revoked for revoked in self._revoked)

    def _check_claim(self, greeting: Greeting, rival: Peer | None, *, same: bool, certified: bool) -> None:
        """Raise SessionRefused if a client may not have the id that it claims now.

        `rival` is another client with the same id. `certified`: a certificate proves that the id is this client's.
        """
        if greeting.id == self.options.id:
            raise SessionRefused(f"the id {greeting.id} is the server's own; give each communicator its own options")
        if self.closing and not same:
            raise SessionRefused("the server is closing")
        until, why = self._barred.get(greeting.id, (0.0, ""))
        if time.monotonic() < until:
            raise SessionRefused(why)
        # The old link may be half-open: its process was restarted, and the network has lost the end of it. Only a PING
        # can find that out soon. If the link is dead it is gone when the client, which retries, comes next.
        if rival is not None and rival.link is not None:
            rival.loop.call(rival.probe)
            raise SessionRefused(
                f"the id {greeting.id} is in use by another client, or by its predecessor that is not known yet to be "
                "gone: it is being asked; give each client its own options, and its own certificate"
            )
        if rival is not None and not certified and (left := rival.grace_left) > 0:
            raise SessionRefused(
                f"the id {greeting.id} is that of a client that has lost its link; it has {left:.1f} s "
                "(takeover_grace) to come back before another process gets the id; give each client its own options"
            )
        crowded = any(memory.budget.exceeded for memory in self._memories.values())
        if not same and crowded and not self._inbox.awaits(greeting.id):
            raise SessionRefused("no room: too much of sessions that are over has not been taken; come again")

    def _make_place(self, id: uuid.UUID, origin: str) -> None:
        """Raise SessionRefused if there is no place for one more session. A session that was never used gives way."""
        options = self.options.connection
        if self._hashes[hash(id)] >= _MOST_ALIKE:
            raise SessionRefused(
                f"{_MOST_ALIKE} sessions have ids of the hash of {id}; expected a random id, as uuid.uuid4()"
            )
        if self._sessions[origin] >= options.max_sessions_per_address:
            of, limit = f" of {origin}", f"max_sessions_per_address: {options.max_sessions_per_address}"
            unused = next((peer for peer in self._unused if peer.origin == origin), None)
        elif len(self.peers) >= options.max_sessions:
            of, limit = "", f"max_sessions: {options.max_sessions}"
            unused = next(iter(self._unused), None)
        else:
            return
        if unused is None:
            raise SessionRefused(
                f"there are as many sessions{of} as there may be ({limit}); come again when others have ended"
            )
        self._end_unused(unused)

    def _end_earlier(self, id: uuid.UUID, peer: Peer) -> None:
        """End the earlier session of a client that has begun a new one."""
        self._session_over(id)
        peer.loop.call(peer.end, Closed(id, "it began anew"))

    def _refuse(self, link: Link, reason: str, code: Code = Code.REFUSED) -> None:
        self._log_refusal(link, reason)
        self._handshake_done(link)
        link.connection.refuse(code, reason)
        link.close()

    def _log_refusal(self, link: Link, reason: str) -> None:
        reason = printable(reason)
        is_new = self._log_dedup.is_new(link.address, reason, time.monotonic())
        level = logging.WARNING if is_new else logging.DEBUG
        log.log(level, "%s: %s; the connection was closed", link.address, reason)
        if is_new and self.is_server:
            self._run_event(self.options.events.refused, link.address, reason)

    def _retry(self, error: Exception) -> None:
        if None in self.peers:
            self.reconnector.lost(error)

    def _open_link(self) -> None:
        if None in self.peers:
            self._transport.open()

    @property
    def _address(self) -> str:
        return "{}:{}".format(*self.netloc)

    def _forget(self, peer: Peer, error: Closed) -> None:
        key = peer.id if self.is_server else None
        self._unused.pop(peer, None)
        if self.is_server:
            self._sessions[peer.origin] -= 1
            if not self._sessions[peer.origin]:
                del self._sessions[peer.origin]
            self._hashes[hash(peer.id)] -= 1
            if not self._hashes[hash(peer.id)]:
                del self._hashes[hash(peer.id)]
        # A newer session may have this id already: `_admit` replaces the peer, and ends the earlier one afterwards.
        # That end must not remove the newer one, nor report `fin` for it.
        if self.peers.get(key) is not peer:
            return
        del self.peers[key]
        self.only = None
        if peer.id is not None:
            self._session_over(peer.id)  # before a `get` raises Closed
            if peer.is_barred:
                self.home.baton.defer(self._inbox.discard, peer.id, self.options.events.end)
            self.home.baton.defer(self._inbox.finish, peer.id, error)
        if not (self.is_server or self.closing or peer.session.closing):
            self.only = self._new_peer(new_token())
            self.peers[None] = self.only  # ended by a timeout, so a new session begins
            return
        if not self.is_server:
            self.ended_by = error
            self._close_inbox(self._closed() if self.closing else error)
        if self.closing and not self.peers:
            self._finish_closing()

    def _session_over(self, id: uuid.UUID) -> None:
        """Report the end of a session, after its last message came and before the first one of the peer's next."""
        if (end := self.options.events.end) is not None:
            # A receiver of its own, so that the inbox counts the entry as taken, and no session gets room for it.
            self._inbox.arrived.append((id, end, Receiver(0, CREDIT, self._memories[self.home], merge=True), 0))
        self._run_event(self.options.events.fin, id)

    def _run_event(self, event: Callable[..., object] | None, *args: object) -> None:
        if event is not None:
            self.home.baton.defer(_run_event, event, *args)

    def _crashed(self, error: BaseException) -> None:
        """End everything after a loop has ended by a bug or a signal handler, so that no thread waits for it."""
        # The loop that has failed may be `home`. What is called and deferred there runs all the same, when that loop
        # sets `over` (Loop._run). The other loops go on until the user closes.
        is_broken = isinstance(error, StepBroken)
        closed = Closed(self.options.id, str(error) if is_broken else f"internal error: {error!r}")
        closed.__cause__ = error
        self._close_inbox(closed)
        self.ended_by = closed
        self.closing = True
        for peer in self.every_peer():
            peer.loop.call(peer.end, closed)
        self._finish_closing()
        what = "a step was interrupted" if is_broken else "internal error"
        log.critical("netq: %s; the communicator is closed", what, exc_info=error)


def _revocation_lists(options: CommunicatorOptions) -> list[RevocationList]:
    named = {"SecurityOptions.revoked": options.security, "SealOptions.revoked": options.seal}
    return [RevocationList(name, given.revoked) for name, given in named.items() if given and given.revoked]


def _id_of(key: int) -> uuid.UUID:
    return uuid.UUID(int=key)


def _revoked(certificate: Certificate) -> str:
    return f"the certificate of {certificate.identity}, serial number {certificate.serial:x}, is revoked"


def _run_event(event: Callable[..., object], peer: object, *args: object) -> None:
    try:
        event(peer, *args)
    except BaseException:  # it is the user's code in our thread: not even sys.exit may end the loop
        log.exception("an event function failed for %s", peer)
