"""Two ends of one session, joined by a wire that can be cut at any byte; for tests without a socket or a clock.

A `LossyPair` simulates both neighbours of a Connection. As the communicator, it answers Hello, detaches lost links,
makes the next link for the same sessions, and forgets sessions that have ended. As the transport, it carries bytes in
steps, in order, up to the next cut. It decides nothing by itself: time is `now`, faults are `cuts`. For netq's own
tests, and for authors of transports who want to see what the two ends send.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from netq.options import ConnectionOptions
from netq.protocol.codec import Outgoing
from netq.protocol.connection import Connection
from netq.protocol.events import Event, Failed, Finished, Hello, Lost, Opened
from netq.protocol.memory import Memory
from netq.protocol.receiver import Item
from netq.protocol.session import Session
from netq.protocol.wire import Greeting
from netq.security.seal import NewConnection
from netq.utils.stream import Stream

CLIENT_ID = uuid.UUID(int=1)
SERVER_ID = uuid.UUID(int=2)
TOKEN = b"the token of one"
MAX_TURNS = 10_000  # a pair that still moves bytes after so many turns is an error


@dataclass(eq=False)
class PairEnd:
    """One end, and the record of what has happened to it."""

    id: uuid.UUID
    options: ConnectionOptions
    memory: Memory = field(default_factory=Memory)
    session: Session | None = None  # a server has none before the first handshake
    connection: Connection | None = None  # None while there is no link
    wire: bytearray = field(default_factory=bytearray)  # bytes sent that have not arrived
    received: dict[int, list[bytes]] = field(default_factory=dict)  # messages by lane
    untaken: deque[Item] = field(default_factory=deque)  # messages that arrived and were not taken
    opened: list[bool] = field(default_factory=list)  # for each handshake, whether the session was resumed
    acked: list[Outgoing] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    over: bool = False  # both ends have sent FIN, as far as this end knows


class TrackedMessage(Outgoing):
    """A message that adds itself to `acked` of its end."""

    def __init__(self, end: PairEnd, stream: Stream, lane: int) -> None:
        super().__init__(stream, lane)
        self._end = end
        self.watched = True

    def acked(self) -> None:
        """Note that the other end has the message."""
        super().acked()
        self._end.acked.append(self)


class LossyPair:
    """A client and a server. Bytes move only in `turn`, `run`, `send` and `deliver`.

    step: bytes that arrive at once. limit: bytes that an end sends at once (see Connection.to_send).
    cuts: the link is cut after these counts of bytes, both directions together.
    take: the user takes each message as it arrives; if False, call `take`.
    new:  what makes the connections of the client and of the server: two of netq.security.seal, to seal them.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        server_options: ConnectionOptions | None = None,
        *,
        step: int = 65536,
        limit: int = 65536,
        cuts: Iterable[int] = (),
        take: bool = True,
        new: tuple[NewConnection, NewConnection] = (Connection, Connection),
    ) -> None:
        self.client = PairEnd(CLIENT_ID, options)
        self.server = PairEnd(SERVER_ID, server_options or options)
        self.client.session = Session(TOKEN, options, self.client.memory)
        self.now = 0.0
        self.moved = 0  # bytes that arrived
        self.links: list[
            tuple[bytearray, bytearray]
        ] = []  # for each link, the bytes that arrived at the server and at the client
        self.stale: list[tuple[Connection, bytes]] = []  # the last link's ends, and the bytes that did not arrive there
        self._step = step
        self._limit = limit
        self._cuts = deque(sorted(cuts))
        self._take = take
        self._new_client, self._new_server = new

    @property
    def up(self) -> bool:
        """Whether there is a link."""
        return self.client.connection is not None

    def other(self, end: PairEnd) -> PairEnd:
        """Return the end that is not `end`."""
        return self.server if end is self.client else self.client

    # Actions of the users.

    def put(self, end: PairEnd, *buffers: bytes, lane: int = 0) -> Outgoing:
        """Queue a message. A server can do so after the first handshake. Raises what Session.put raises."""
        assert end.session is not None
        message = TrackedMessage(end, Stream(buffers), lane)
        end.session.put(message)
        return message

    def take(self, end: PairEnd, count: int | None = None) -> None:
        """Take the `count` oldest messages (None: all), which extends the sender's credit."""
        for _ in range(len(end.untaken) if count is None else min(count, len(end.untaken))):
            _, _, receiver, mark = end.untaken.popleft()
            receiver.taken_room = mark
            if end.session is not None:
                end.session.release_room(receiver)

    def close(self, end: PairEnd) -> None:
        """Send what is queued, then FIN."""
        if end.session is None or end.over:
            return
        end.session.close()
        if end.connection is not None:
            self._apply(end, end.connection.close())

    # Actions of the network.

    def connect(self) -> bool:
        """Make a new link; return False if the client's session has ended, so there is no other link."""
        if self.client.over:
            self._expire()
            return False
        self.client.connection = self._new_client(self.client.id, self.client.options, self.now, self.client.session)
        self.server.connection = self._new_server(self.server.id, self.server.options, self.now, None)
        self.links.append((bytearray(), bytearray()))
        return True

    def cut(self) -> None:
        """Cut the link, if there is one; the bytes on the wire are lost."""
        if not self.up:
            return
        self.stale = []
        for end in (self.client, self.server):
            assert end.connection is not None
            end.connection.detach()
            self.stale.append((end.connection, bytes(self.other(end).wire)))
        for end in (self.client, self.server):
            end.connection = None
            end.wire.clear()

    def restart_server(self, id: uuid.UUID = SERVER_ID) -> None:
        """Restart the server without its session and its messages, under `id`."""
        self.cut()
        fresh = PairEnd(id, self.server.options)
        fresh.received, fresh.acked, fresh.lost = self.server.received, self.server.acked, self.server.lost
        self.server = fresh

    def send(self, end: PairEnd) -> int:
        """Put the bytes that `end` has to send on the wire; return how many."""
        if end.connection is None:
            return 0
        data = b"".join(end.connection.to_send(self._limit, self.now))
        end.wire += data
        return len(data)

    def deliver(self, end: PairEnd, count: int) -> int:
        """Move up to `count` bytes from `end` to the other end, up to the next cut; return how many arrived."""
        other = self.other(end)
        if other.connection is None:
            return 0
        data = bytes(end.wire[: min(count, self._cuts[0] - self.moved) if self._cuts else count])
        del end.wire[: len(data)]
        self.moved += len(data)
        self.links[-1][other is self.client].extend(data)
        events = other.connection.feed(memoryview(data), self.now)
        self._collect(other)
        self._apply(other, events)
        if self._cuts and self.moved >= self._cuts[0]:
            self._cuts.popleft()
            self.cut()
        return len(data)

    def tick(self, seconds: float) -> None:
        """Advance the time at both ends."""
        self.now += seconds
        for end in (self.client, self.server):
            if end.connection is not None:
                self._apply(end, end.connection.tick(self.now))

    def turn(self) -> int:
        """Let each end send once, and deliver all of it; return how many bytes moved."""
        before = self.moved
        for end in (self.client, self.server):
            self.send(end)
            while end.wire and self.deliver(end, self._step):
                pass
        if self.moved == before and any(end.connection and end.connection.closed for end in (self.client, self.server)):
            self.cut()  # there is nothing more to send: the end that has closed hangs up
        return self.moved - before

    def run(self) -> None:
        """Take turns until nothing moves, with a new link for each lost one."""
        for _ in range(MAX_TURNS):
            if not self.up and not self.connect():
                return
            if not self.turn() and self.up:
                return
        raise RuntimeError(f"no rest after {MAX_TURNS} turns and {len(self.links)} links")

    # Actions of the communicators.

    def _apply(self, end: PairEnd, events: list[Event]) -> None:
        for event in events:
            match event:
                case Hello(greeting):
                    self._apply(end, self._answer(end, greeting))
                case Opened(_, resumed):
                    end.opened.append(resumed)
                case Failed():
                    end.failed.append(event)
                case Finished():
                    self._finished(end, event)
                case Lost():
                    end.lost.append(event)
                    self.cut()

    def _collect(self, end: PairEnd) -> None:
        while end.session is not None and end.session.arrived:
            item = end.session.arrived.popleft()
            end.received.setdefault(item[2].lane, []).append(bytes(item[1]))
            end.untaken.append(item)
            if self._take:
                self.take(end)

    def _answer(self, end: PairEnd, greeting: Greeting) -> list[Event]:
        assert end.connection is not None
        resumed = end.session is not None and end.session.token == greeting.token
        if not resumed:
            end.session = Session(greeting.token, end.options, end.memory)
            end.over = False
        assert end.session is not None
        return end.connection.accept(end.session, greeting, resumed=resumed, now=self.now)

    def _finished(self, end: PairEnd, event: Finished) -> None:
        end.finished.append(event)
        if not event.over:
            self.close(end)
            return
        end.over = True
        if end is self.server:
            end.session = None  # the server has forgotten this client

    def _expire(self) -> None:
        """End the server's session, as its session_timeout does: the client will not connect again."""
        if self.server.session is not None:
            self.server.failed += [Failed(message, None) for message in self.server.session.abandon()]
            self.server.session = None
            self.server.over = True
