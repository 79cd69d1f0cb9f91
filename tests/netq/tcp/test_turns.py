"""A link and its loop, turn by turn: nobody's frames take more than their share, however many they are; and an answer
that is there takes the ACK along."""

from __future__ import annotations

import select
import socket
import uuid
from collections.abc import Iterator, Sequence

import pytest

from netq.connection import Connection
from netq.events import Event, Hello, Lost, Received
from netq.lane import Outgoing
from netq.link import Link as AnyLink
from netq.loop import Loop
from netq.memory import Memory
from netq.options import CommunicatorOptions
from netq.pipe import Plain
from netq.session import Session
from netq.tcp.link import Link
from netq.utils.stream import Stream
from netq.wire import HEADER_SIZE, Frame, Greeting, Kind

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


class Answering(Server):
    """Answers each message, if it is told to, as a user's thread does: by calls into the loop."""

    loop: Loop

    def __init__(self) -> None:
        super().__init__()
        self.answers = True

    def deliver(self, link: AnyLink, events: Sequence[Event]) -> None:
        super().deliver(link, events)
        for event in events:
            if isinstance(event, Received):
                self.loop.call(event.session.put if self.answers else repr, Outgoing(event.stream))
                if self.answers:
                    self.loop.call(link.flush)


class Counting(Plain):
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

    def __init__(self, server: Server) -> None:
        self.loops = [Loop(f"turned by hand {n}", self._crashed) for n in range(2)]
        self.server = server
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.sock = socket.create_connection(listener.getsockname())
            self.far = listener.accept()[0]
        self.sock.sendall(Greeting(uuid.uuid4(), bytes(16), 2**40, 2**20, 10_000).frame().whole())
        self.pipe = Counting(self.far)
        self.link = Link(self.server, self.loops[0], self.pipe, self.server.connect(), "a flood")
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

    def _crashed(self, error: BaseException) -> None:
        self.server.why.append(AssertionError(repr(error)))


@pytest.fixture
def flood() -> Iterator[Flood]:
    flood = Flood(Server())
    yield flood
    flood.close()


@pytest.fixture
def talk() -> Iterator[Flood]:
    """A link whose server answers, after the greetings."""
    server = Answering()
    talk = Flood(server)
    server.loop = talk.loops[0]
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
    """Send a message of five bytes, and let it come."""
    talk.sock.sendall(Frame(Kind.MSG, length=5, number=number, value=5).header() + b"hello")
    assert select.select([talk.far], [], [], LIMIT)[0]


def kinds(sent: bytes) -> list[int]:
    """The kinds of the frames, with bodies of five bytes."""
    found = []
    while sent:
        found.append(sent[0])
        sent = sent[HEADER_SIZE + (5 if sent[0] == Kind.MSG else 0) :]
    return found


def test_an_answer_that_is_there_takes_the_ack_along(talk: Flood) -> None:
    for number in range(1, 4):
        say(talk, number)
        talk.loops[0]._turn()
    assert [kinds(sent) for sent in talk.pipe.sent] == [[Kind.ACK, Kind.MSG]] * 3


def test_an_ack_waits_for_nobody_who_has_no_answer(talk: Flood) -> None:
    assert isinstance(talk.server, Answering)
    talk.server.answers = False  # but calls all the same
    for number in range(1, 4):
        say(talk, number)
        talk.loops[0]._turn()
        assert len(talk.pipe.sent) == number, "it is sent in the turn in which the message came"
    assert [kinds(sent) for sent in talk.pipe.sent] == [[Kind.ACK]] * 3


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
