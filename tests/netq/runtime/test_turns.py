"""A link and its loop, turn by turn: fairness under a flood of small frames, and ACKs that wait for a reply."""

from __future__ import annotations

import select
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence

import pytest

from netq.buffers import NOTHING
from netq.io.baton import TICK
from netq.io.loop import Loop
from netq.io.receive_size import INITIAL_READ, MIN_READ
from netq.io.sockets import PlainSocket, tune
from netq.options import CommunicatorOptions
from netq.protocol.codec import Outgoing
from netq.protocol.connection import Connection
from netq.protocol.events import Event, Hello, Lost
from netq.protocol.memory import Memory
from netq.protocol.session import Session
from netq.protocol.wire import HEADER_SIZE, Frame, FrameKind, Greeting
from netq.runtime.link import Link as AnyLink
from netq.runtime.stream_link import Link
from netq.utils.stream import Stream

LIMIT = 20.0
PINGS = Frame(FrameKind.PING).header() * 20_000


class Server:
    """Accepts every greeting, and keeps the errors of lost links."""

    def __init__(self) -> None:
        self.options = CommunicatorOptions()
        self.why: list[Exception] = []

    def connect(self) -> Connection:
        return Connection(self.options.id, self.options.connection, 0.0)

    def has_room(self) -> bool:
        raise AssertionError

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


class ReplyingServer(Server):
    """Replies to each message when the loop has settled, as users do. It is the Worker of its link, too."""

    inline = True

    def __init__(self) -> None:
        super().__init__()
        self.answers = True
        self.line = ["a waiter"]
        self.loop = Loop("turned by hand", self.crashed, shared=True, serve=self.settle, waiters=self.line)
        self.link: Link | None = None

    def settle(self) -> bool:
        """Take the messages that arrived; return whether a user waited for them."""
        session = None if self.link is None else self.link.connection.session
        if session is None or not session.arrived:
            return False
        while session.arrived:
            stream = session.arrived.popleft()[1]
            if self.answers:
                session.outbox.append(Outgoing(Stream([bytes(stream)])))
                self.loop.baton.flush_soon(self)
        return self.answers

    def flush(self) -> None:
        self.loop.baton.unflushed.pop(self, None)
        assert self.link is not None
        self.link.flush()


class Counting(PlainSocket):
    """Counts received bytes, and keeps what each `send` took."""

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

    def recv_into(self, buffer: memoryview, ahead: memoryview = NOTHING) -> int:
        count = super().recv_into(buffer, ahead)
        self.count += count
        return count


class Flood:
    """A peer that sends as many PINGs as its socket takes, and a link in a loop whose turns the test calls."""

    def __init__(self, server: Server, *loops: Loop) -> None:
        self.loops = loops or tuple([Loop(f"turned by hand {n}", server.crashed) for n in range(2)])
        for loop in self.loops:
            loop.baton.thread = threading.get_ident()
        self.server = server
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.sock = socket.create_connection(listener.getsockname())
            self.far = listener.accept()[0]
        tune(self.far)
        self.sock.sendall(Greeting(uuid.uuid4(), bytes(16), 2**40, 2**20, 10_000).frame().whole())
        self.stream = Counting(self.far)
        self.link = Link(self.server, self.loops[0], self.stream, self.server.connect(), "a flood")
        assert select.select([self.far], [], [], LIMIT)[0]
        self.loops[0].turn()
        assert self.link.connection.open
        self.sock.setblocking(False)
        self._rest = b""

    def refill(self) -> int:
        """Fill the socket; return how many bytes it took."""
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
    """A link after the greetings, whose server replies; the loop expects quick replies."""
    server = ReplyingServer()
    talk = Flood(server, server.loop)
    server.link, talk.link.peer = talk.link, server
    server.loop.baton.waits_are_short = True
    talk.stream.sent.clear()
    yield talk
    talk.close()


def test_busy_link_has_one_call_in_the_queue(flood: Flood) -> None:
    queued = []
    for _ in range(30):
        flood.refill()
        flood.loops[0].turn()
        queued.append(flood.loops[0].queued)
    assert queued.count(1) > 10, "the link was not busy"
    assert max(queued) == 1
    assert not flood.server.why


def test_one_turn_reads_little_of_many_small_frames(flood: Flood, monkeypatch: pytest.MonkeyPatch) -> None:
    """If each byte costs 100 ns, the bound is some tens of kilobytes; for large messages it is megabytes."""
    monkeypatch.setattr(time, "thread_time", lambda: 1e-7 * flood.stream.count)
    taken = []
    for _ in range(30):
        flood.refill()
        before = flood.stream.count
        flood.loops[0].turn()
        taken.append(flood.stream.count - before)
    assert taken[0] < 3 * INITIAL_READ  # before the size of a read has adapted
    assert 0 < max(taken[1:]) < 128 * 1024, taken
    assert not flood.server.why


def test_frames_behind_a_body_count_in_the_size_of_a_read(flood: Flood) -> None:
    flood.link.connection._reader._scratch = memoryview(bytearray(128 * 1024))  # as that of a busy peer
    flood.link._receive_size.size = MIN_READ
    flood.sock.send(Frame(FrameKind.MSG, length=2, number=1, value=2).header() + b"a")
    flood.loops[0].turn()
    asked, recv_into = [], flood.stream.recv_into

    def recv_and_note(buffer: memoryview, ahead: memoryview = NOTHING) -> int:
        asked.append(len(buffer) + len(ahead))
        return recv_into(buffer, ahead)

    flood.stream.recv_into = recv_and_note  # type: ignore[method-assign]
    flood.sock.send(b"b")
    flood.refill()
    flood.loops[0].turn()
    assert asked[0] == MIN_READ
    assert not flood.server.why


def test_busy_link_that_moves_continues_in_the_new_loop_only(flood: Flood) -> None:
    old, new = flood.loops
    for _ in range(30):  # the system may hand on little of what was sent, and one turn reads that
        flood.refill()
        old.turn()
        if old.queued:
            break
    assert old.queued
    flood.link.move(new)
    flood.refill()
    before = flood.stream.count
    old.turn()
    assert flood.stream.count == before, "the old loop still reads"
    new.turn()
    assert flood.stream.count > before
    assert not flood.server.why


def send_message(talk: Flood, number: int) -> None:
    """Send a message of five bytes while user threads poll, so the loop's thread only parks between its turns."""
    loop = talk.loops[0]
    with loop.baton.lock:
        loop.baton.user_seen = time.monotonic()
        loop.baton.choose_phase()
    talk.sock.sendall(Frame(FrameKind.MSG, length=5, number=number, value=5).header() + b"hello")
    assert select.select([talk.far], [], [], LIMIT)[0]


def kinds(sent: bytes) -> list[int]:
    """The kinds of the frames, with bodies of five bytes."""
    found = []
    while sent:
        found.append(sent[0])
        sent = sent[HEADER_SIZE + (5 if sent[0] == FrameKind.MSG else 0) :]
    return found


@pytest.fixture
def long_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slow machine not count as a late reply."""
    monkeypatch.setattr("netq.io.loop.TICK", 0.1)
    monkeypatch.setattr("netq.io.baton.TICK", 0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("long_tick")
def test_reply_carries_the_ack(talk: Flood) -> None:
    for number in range(1, 4):
        send_message(talk, number)
        talk.loops[0].turn()
        talk.loops[0].turn()
        assert len(talk.stream.sent) == number, "sent in the turn after the message's"
    assert [kinds(sent) for sent in talk.stream.sent] == [[FrameKind.ACK, FrameKind.MSG]] * 3
    assert not talk.server.why


@pytest.mark.parametrize("calls", [False, True])
def test_ack_leaves_at_once_without_a_waiter(talk: Flood, calls: bool) -> None:
    assert isinstance(talk.server, ReplyingServer)
    talk.server.answers = False
    talk.server.line.clear()
    for number in range(1, 4):
        send_message(talk, number)
        if calls:
            talk.loops[0].call(len, ())
        received = talk.stream.count
        while talk.stream.count == received:  # some turns leave the socket to a user who was active a moment ago
            talk.loops[0].turn()
        assert len(talk.stream.sent) == number, "sent in the message's turn"
    assert [kinds(sent) for sent in talk.stream.sent] == [[FrameKind.ACK]] * 3
    assert not talk.server.why


@pytest.mark.slow
@pytest.mark.usefixtures("long_tick")
def test_ack_leaves_after_one_turn_without_a_reply(talk: Flood) -> None:
    assert isinstance(talk.server, ReplyingServer)
    talk.server.answers = False
    for number in range(1, 4):
        send_message(talk, number)
        talk.loops[0].turn()
        assert len(talk.stream.sent) == number - 1, "a reply may come"
        talk.loops[0].turn()
        assert len(talk.stream.sent) == number, "sent in the next turn"
    assert [kinds(sent) for sent in talk.stream.sent] == [[FrameKind.ACK]] * 3
    assert not talk.server.why


def test_delayed_ack_leaves_after_a_long_turn(talk: Flood) -> None:
    """A turn longer than TICK: then the loop's thread polls again, and no other event may come."""
    assert isinstance(talk.server, ReplyingServer)
    talk.server.answers = False
    loop = talk.loops[0]
    send_message(talk, 1)

    def take_long() -> None:
        until = time.monotonic() + 2 * TICK
        while time.monotonic() < until:
            pass

    loop.call(take_long)
    loop.turn()
    begin = time.monotonic()
    loop.at(begin + LIMIT, len, ())  # ends the wait if the test fails
    if not talk.stream.sent:  # not in the long turn
        loop.turn()
    assert time.monotonic() - begin < LIMIT / 2
    assert [kinds(sent) for sent in talk.stream.sent] == [[FrameKind.ACK]]


def test_message_put_while_the_socket_is_full_leaves_later(talk: Flood) -> None:
    """The message before it was the whole batch, and the socket took a part of that batch."""
    link, session = talk.link, talk.link.connection.session
    assert session is not None
    talk.stream.room = 10
    session.put(Outgoing(Stream([b"first"])))
    link.flush()
    assert len(b"".join(talk.stream.sent)) == 10
    session.put(Outgoing(Stream([b"other"])))
    link.flush()
    talk.stream.room = 2**62
    talk.loops[0].turn()
    assert kinds(b"".join(talk.stream.sent)) == [FrameKind.MSG] * 2


def test_answers_leave_under_a_flood_of_frames_and_calls(flood: Flood) -> None:
    for _ in range(30):
        flood.refill()
        flood.loops[0].call(len, ())
        flood.loops[0].turn()
    assert len(flood.stream.sent) > 10, "answers to PINGs"
    assert not flood.server.why
