"""A link and its loop, turn by turn: nobody's frames take more than their share, however many they are; and an answer
that is there takes the ACK along."""

from __future__ import annotations

import select
import socket
import time
import uuid
from collections.abc import Iterator, Sequence

import pytest

from netq.io.loop import TICK, Loop
from netq.io.sockets import PlainSocket
from netq.options import CommunicatorOptions
from netq.protocol.codec import Outgoing
from netq.protocol.connection import Connection
from netq.protocol.events import Event, Hello, Lost
from netq.protocol.memory import Memory
from netq.protocol.session import Session
from netq.protocol.wire import HEADER_SIZE, Frame, Greeting, Kind
from netq.runtime.link import Link as AnyLink
from netq.tcp.link import Link
from netq.utils.stream import Stream

LIMIT = 20.0
PINGS = Frame(Kind.PING).header() * 20_000


class Server:
    """Says yes to whoever comes, and remembers why it was lost."""

    def __init__(self) -> None:
        self.options = CommunicatorOptions()
        self.why: list[Exception] = []

    def connect(self) -> Connection:
        return Connection(self.options.id, self.options.connection, 0.0)

    def attach(self, link: AnyLink) -> None:
        raise AssertionError

    def deliver(self, link: AnyLink, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Hello):
                session = Session(event.greeting.token, self.options.connection, Memory())
                session.peer = event.greeting.id
                link.connection.accept(session, event.greeting, resumed=False, now=0.0)
            elif isinstance(event, Lost):
                self.why.append(event.error)

    def lost(self, link: AnyLink | None, error: Exception) -> None:
        self.why.append(error)

    def crashed(self, error: BaseException) -> None:
        self.why.append(AssertionError(repr(error)))


class Answering(Server):
    """Answers each message, if it is told to, as users do: when the loop has settled; and its thread sends.

    It is a Worker too: whose link it is.
    """

    inline = True

    def __init__(self) -> None:
        super().__init__()
        self.answers = True
        self.line = ["somebody waits"]
        self.loop = Loop("turned by hand", self.crashed, shared=True, settle=self.settle, line=self.line)
        self.link: Link | None = None

    def settle(self) -> bool:
        """Take what has come; return whether somebody had waited for it."""
        session = None if self.link is None else self.link.connection.session
        if session is None or not session.arrived:
            return False
        while session.arrived:
            stream = session.arrived.popleft()[1]
            if self.answers:
                session.outbox.append(Outgoing(Stream([bytes(stream)])))
                self.loop.flush_soon(self)
        return self.answers

    def flush(self) -> None:
        self.loop.unflushed.pop(self, None)
        assert self.link is not None
        self.link.flush()

    def repair(self) -> None:
        raise AssertionError


class Counting(PlainSocket):
    """Counts what is received, and keeps what is sent at once."""

    count = 0

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.sent: list[bytes] = []
        self.room = 2**62  # bytes that the socket has room for

    def send(self, buffers: Sequence[memoryview]) -> int:
        data = b"".join(buffers)[: self.room]
        self.blocked = not data
        count = super().send([memoryview(data)]) if data else 0
        self.room -= count
        self.sent += [data] if data else []
        return count

    def recv_into(self, buffer: memoryview) -> int:
        count = super().recv_into(buffer)
        self.count += count
        return count


class Flood:
    """A peer that sends as many PINGs as its socket takes, and a link in a loop that the test turns by hand."""

    def __init__(self, server: Server, *loops: Loop) -> None:
        self.loops = loops or tuple([Loop(f"turned by hand {n}", server.crashed) for n in range(2)])
        self.server = server
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.sock = socket.create_connection(listener.getsockname())
            self.far = listener.accept()[0]
        self.sock.sendall(Greeting(uuid.uuid4(), bytes(16), 2**40, 2**20, 10_000).frame().whole())
        self.pipe = Counting(self.far)
        self.link = Link(self.server, self.loops[0], self.pipe, self.server.connect(), "a flood")
        assert select.select([self.far], [], [], LIMIT)[0]
        self.loops[0]._turn()
        assert self.link.connection.open
        self.sock.setblocking(False)
        self._rest = b""

    def refill(self) -> int:
        """Return how many bytes there was room for."""
        sent = 0
        try:
            while True:
                self._rest = self._rest or PINGS
                count = self.sock.send(self._rest)
                self._rest = self._rest[count:]
                sent += count
        except BlockingIOError:
            return sent

    def close(self) -> None:
        self.sock.close()
        self.far.close()
        for loop in self.loops:
            loop.stop()
            loop.start()
            loop.join()


@pytest.fixture
def flood() -> Iterator[Flood]:
    flood = Flood(Server())
    yield flood
    flood.close()


@pytest.fixture
def talk() -> Iterator[Flood]:
    """A link whose server answers, after the greetings, and where those who wait are quick."""
    server = Answering()
    talk = Flood(server, server.loop)
    server.link, talk.link.peer = talk.link, server
    server.loop._waits_are_short = True
    talk.pipe.sent.clear()
    yield talk
    talk.close()


def test_a_link_that_stays_busy_asks_for_one_more_call_and_not_for_one_more_each_turn(flood: Flood) -> None:
    queued = []
    for _ in range(30):
        flood.refill()
        flood.loops[0]._turn()
        queued.append(len(flood.loops[0]._calls))
    assert queued.count(1) > 10, "it was not busy"
    assert max(queued) == 1
    assert not flood.server.why


def test_one_turn_takes_little_of_many_small_frames(flood: Flood) -> None:
    """Some tens of kilobytes; large messages get megabytes."""
    taken = []
    for _ in range(30):
        flood.refill()
        before = flood.pipe.count
        flood.loops[0]._turn()
        taken.append(flood.pipe.count - before)
    assert 0 < max(taken) < 160 * 1024, taken
    assert not flood.server.why


def test_a_busy_link_that_moves_goes_on_in_the_other_loop_and_only_there(flood: Flood) -> None:
    old, new = flood.loops
    flood.refill()
    old._turn()
    assert old._calls
    flood.link.move(new)
    flood.refill()
    before = flood.pipe.count
    old._turn()
    assert flood.pipe.count == before, "it was read in the loop that it has left"
    new._turn()
    assert flood.pipe.count > before
    assert not flood.server.why


def say(talk: Flood, number: int) -> None:
    """Send a message of five bytes, and let it come while users work, and the loop's thread looks now and then."""
    loop = talk.loops[0]
    with loop.baton:
        loop._user_seen = time.monotonic()
        loop._choose()
    talk.sock.sendall(Frame(Kind.MSG, length=5, number=number, value=5).header() + b"hello")
    assert select.select([talk.far], [], [], LIMIT)[0]


def kinds(sent: bytes) -> list[int]:
    """The kinds of the frames, with bodies of five bytes."""
    found = []
    while sent:
        found.append(sent[0])
        sent = sent[HEADER_SIZE + (5 if sent[0] == Kind.MSG else 0) :]
    return found


@pytest.fixture
def long_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is slow for a while is not late."""
    monkeypatch.setattr("netq.io.loop.TICK", 0.1)


@pytest.mark.usefixtures("long_tick")
def test_an_answer_that_is_there_takes_the_ack_along(talk: Flood) -> None:
    for number in range(1, 4):
        say(talk, number)
        talk.loops[0]._turn()
        talk.loops[0]._turn()
        assert len(talk.pipe.sent) == number, "it is sent in the turn after the one in which the message came"
    assert [kinds(sent) for sent in talk.pipe.sent] == [[Kind.ACK, Kind.MSG]] * 3
    assert not talk.server.why


@pytest.mark.parametrize("calls", [False, True])
def test_an_ack_waits_for_nobody_if_nobody_waits(talk: Flood, calls: bool) -> None:
    assert isinstance(talk.server, Answering)
    talk.server.answers = False
    talk.server.line.clear()
    for number in range(1, 4):
        say(talk, number)
        if calls:
            talk.loops[0].call(len, ())
        talk.loops[0]._turn()
        assert len(talk.pipe.sent) == number, "it is sent in the turn in which the message came"
    assert [kinds(sent) for sent in talk.pipe.sent] == [[Kind.ACK]] * 3
    assert not talk.server.why


@pytest.mark.usefixtures("long_tick")
def test_an_ack_does_not_wait_for_long_for_who_has_no_answer(talk: Flood) -> None:
    assert isinstance(talk.server, Answering)
    talk.server.answers = False
    for number in range(1, 4):
        say(talk, number)
        talk.loops[0]._turn()
        assert len(talk.pipe.sent) == number - 1, "there might be an answer"
        talk.loops[0]._turn()
        assert len(talk.pipe.sent) == number, "it is sent in the next turn"
    assert [kinds(sent) for sent in talk.pipe.sent] == [[Kind.ACK]] * 3
    assert not talk.server.why


def test_an_ack_that_waits_is_not_forgotten_when_the_turn_takes_long(talk: Flood) -> None:
    """Longer than users are waited for: then the loop's thread polls again, and nothing else may come."""
    assert isinstance(talk.server, Answering)
    talk.server.answers = False
    loop = talk.loops[0]
    say(talk, 1)

    def take_long() -> None:
        until = time.monotonic() + 2 * TICK
        while time.monotonic() < until:
            pass

    loop.call(take_long)
    loop._turn()
    begin = time.monotonic()
    loop.at(begin + 1.0, len, ())  # it has to end
    if not talk.pipe.sent:  # in that turn
        loop._turn()
    assert time.monotonic() - begin < 0.5
    assert [kinds(sent) for sent in talk.pipe.sent] == [[Kind.ACK]]


def test_what_is_put_while_the_socket_is_full_leaves_as_soon_as_it_is_not(talk: Flood) -> None:
    """Also if what was there before had been all, and the socket did not take all of it."""
    link, session = talk.link, talk.link.connection.session
    assert session is not None
    talk.pipe.room = 10
    session.put(Outgoing(Stream([b"first"])))
    link.flush()
    assert len(b"".join(talk.pipe.sent)) == 10
    session.put(Outgoing(Stream([b"other"])))
    link.flush()
    talk.pipe.room = 2**62
    talk.loops[0]._turn()
    assert kinds(b"".join(talk.pipe.sent)) == [Kind.MSG] * 2


def test_what_is_due_leaves_though_more_comes_and_is_called_in_each_turn(flood: Flood) -> None:
    for _ in range(30):
        flood.refill()
        flood.loops[0].call(len, ())
        flood.loops[0]._turn()
    assert len(flood.pipe.sent) > 10, "answers to PINGs"
    assert not flood.server.why
