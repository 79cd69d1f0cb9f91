"""A link and its loop, turn by turn: nobody's frames take more than their share, however many they are."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator, Sequence

import pytest

from netq.connection import Connection
from netq.events import Event, Hello, Lost
from netq.link import Link as AnyLink
from netq.loop import Loop
from netq.memory import Memory
from netq.options import CommunicatorOptions
from netq.pipe import Plain
from netq.session import Session
from netq.tcp.link import Link
from netq.wire import Frame, Greeting, Kind

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


class Counting(Plain):
    """Counts what is received."""

    count = 0

    def recv_into(self, buffer: memoryview) -> int:
        count = super().recv_into(buffer)
        self.count += count
        return count


class Flood:
    """A peer that sends as many PINGs as its socket takes, and a link in a loop that the test turns by hand."""

    def __init__(self) -> None:
        self.loops = [Loop(f"turned by hand {n}", self._crashed) for n in range(2)]
        self.server = Server()
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
    flood = Flood()
    yield flood
    flood.close()


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
