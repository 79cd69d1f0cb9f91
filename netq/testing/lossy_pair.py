"""Two ends of one session, joined by a wire that can be cut at any byte: for tests, without a socket or a clock.

A `LossyPair` plays what is around a Connection: the communicator (it answers Hello, detaches when a link is
lost, makes the next link for the same sessions, forgets a session that is over) and the transport (it carries
bytes in steps, in order, up to the cut). It decides nothing by itself: time is `now`, faults are `cuts`.
Used by netq's own tests and by whoever writes a transport and wants to see what the two ends say.
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
from netq.utils.stream import Stream

CLIENT_ID = uuid.UUID(int=1)
SERVER_ID = uuid.UUID(int=2)
TOKEN = b"the token of one"
TURNS = 10_000  # after which a conversation that does not come to rest is an error


@dataclass(eq=False)
class End:
    """One end, and all that has happened to it."""

    id: uuid.UUID
    options: ConnectionOptions
    memory: Memory = field(default_factory=Memory)
    session: Session | None = None  # a server has none until a client comes
    connection: Connection | None = None  # None while there is no link
    wire: bytearray = field(default_factory=bytearray)  # sent, and not yet at the other end
    received: dict[int, list[bytes]] = field(default_factory=dict)  # the messages of each lane
    untaken: deque[Item] = field(default_factory=deque)  # messages here
    opened: list[bool] = field(default_factory=list)  # of each handshake: whether the session went on
    acked: list[Outgoing] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    over: bool = False  # both have said FIN, seen from here


class Put(Outgoing):
    """A message that notes at its end that it is acknowledged."""

    def __init__(self, end: End, stream: Stream, lane: int) -> None:
        super().__init__(stream, lane)
        self._end = end

    def acked(self) -> None:
        """The other end holds it."""
        super().acked()
        self._end.acked.append(self)


class LossyPair:
    """A client and a server. Nothing moves but by `turn`, `run`, or `send` and `deliver`.

    step: bytes that arrive at once. limit: what an end may send at once (see Connection.to_send).
    cuts: counts of bytes moved, in both directions together, after which the link is cut.
    take: messages are taken by the user as they arrive; if not, call `take`.
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
    ) -> None:
        self.client = End(CLIENT_ID, options)
        self.server = End(SERVER_ID, server_options or options)
        self.client.session = Session(TOKEN, options, self.client.memory)
        self.now = 0.0
        self.moved = 0  # bytes that arrived
        self.links: list[tuple[bytearray, bytearray]] = []  # of each link, what arrived at the server, at the client
        self.stale: list[tuple[Connection, bytes]] = []  # of the last link: each end, and what did not arrive there
        self._step = step
        self._limit = limit
        self._cuts = deque(sorted(cuts))
        self._take = take

    @property
    def up(self) -> bool:
        """Whether there is a link."""
        return self.client.connection is not None

    def other(self, end: End) -> End:
        """Return the end that is not `end`."""
        return self.server if end is self.client else self.client

    # What the users at the ends do.

    def put(self, end: End, *buffers: bytes, lane: int = 0) -> Outgoing:
        """Queue a message. A server can from the first handshake on. Raises what Session.put raises."""
        assert end.session is not None
        message = Put(end, Stream(buffers), lane)
        end.session.put(message)
        return message

    def take(self, end: End, count: int | None = None) -> None:
        """Let the user take the `count` oldest messages (None: all), so that the sender gets room."""
        for _ in range(len(end.untaken) if count is None else min(count, len(end.untaken))):
            _, _, receiver, number, mark = end.untaken.popleft()
            receiver.consume(number, mark)
            if end.session is not None:
                end.session.release_room(receiver)

    def close(self, end: End) -> None:
        """Say no more than what is queued, then FIN."""
        if end.session is None or end.over:
            return
        end.session.close()
        if end.connection is not None:
            self._apply(end, end.connection.close())

    # What the network does.

    def connect(self) -> bool:
        """Make a new link; False if nobody wants one, as the client's session is over."""
        if self.client.over:
            self._expire()
            return False
        self.client.connection = Connection(self.client.id, self.client.options, self.now, self.client.session)
        self.server.connection = Connection(self.server.id, self.server.options, self.now)
        self.links.append((bytearray(), bytearray()))
        return True

    def cut(self) -> None:
        """Cut the link; what is on the wire is lost. Without a link nothing happens."""
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
        """Let the server lose its session, and what it had to send. It comes back under `id`."""
        self.cut()
        fresh = End(id, self.server.options)
        fresh.received, fresh.acked, fresh.lost = self.server.received, self.server.acked, self.server.lost
        self.server = fresh

    def send(self, end: End) -> int:
        """Put on the wire what `end` has to send now; return how many bytes."""
        if end.connection is None:
            return 0
        data = b"".join(end.connection.to_send(self._limit, self.now))
        end.wire += data
        return len(data)

    def deliver(self, end: End, count: int) -> int:
        """Move up to `count` bytes of what `end` has sent, up to the next cut; return how many arrived."""
        other = self.other(end)
        if other.connection is None:
            return 0
        data = bytes(end.wire[: min(count, self._cuts[0] - self.moved) if self._cuts else count])
        del end.wire[: len(data)]
        self.moved += len(data)
        self.links[-1][other is self.client].extend(data)
        events = other.connection.feed(memoryview(data), self.now)
        self._arrived(other)
        self._apply(other, events)
        if self._cuts and self.moved >= self._cuts[0]:
            self._cuts.popleft()
            self.cut()
        return len(data)

    def tick(self, seconds: float) -> None:
        """Let time pass, at both ends."""
        self.now += seconds
        for end in (self.client, self.server):
            if end.connection is not None:
                self._apply(end, end.connection.tick(self.now))

    def turn(self) -> int:
        """Let each end send once and the wire carry it all; return how many bytes moved."""
        before = self.moved
        for end in (self.client, self.server):
            self.send(end)
            while end.wire and self.deliver(end, self._step):
                pass
        if self.moved == before and any(end.connection and end.connection.closed for end in (self.client, self.server)):
            self.cut()  # all is said: whoever is done hangs up
        return self.moved - before

    def run(self) -> None:
        """Turn until nothing moves any more, over a new link for each that is lost."""
        for _ in range(TURNS):
            if not self.up and not self.connect():
                return
            if not self.turn() and self.up:
                return
        raise RuntimeError(f"no rest after {TURNS} turns and {len(self.links)} links")

    # What the communicators do.

    def _apply(self, end: End, events: list[Event]) -> None:
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

    def _arrived(self, end: End) -> None:
        while end.session is not None and end.session.arrived:
            item = end.session.arrived.popleft()
            end.received.setdefault(item[2].lane, []).append(bytes(item[1]))
            end.untaken.append(item)
            if self._take:
                self.take(end)

    def _answer(self, end: End, greeting: Greeting) -> list[Event]:
        assert end.connection is not None
        resumed = end.session is not None and end.session.token == greeting.token
        if not resumed:
            end.session = Session(greeting.token, end.options, end.memory)
            end.over = False
        assert end.session is not None
        return end.connection.accept(end.session, greeting, resumed=resumed, now=self.now)

    def _finished(self, end: End, event: Finished) -> None:
        end.finished.append(event)
        if not event.over:
            self.close(end)
            return
        end.over = True
        if end is self.server:
            end.session = None  # it knows this client no more

    def _expire(self) -> None:
        """The client will not come again: the server's session is over by its session_timeout."""
        if self.server.session is not None:
            self.server.failed += [Failed(message, None) for message in self.server.session.abandon()]
            self.server.session = None
            self.server.over = True
