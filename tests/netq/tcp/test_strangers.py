"""Peers that do not speak netq: one log line each, and no effect on clients. See tests/netq/transports, too."""

from __future__ import annotations

import random
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from netq.core import Communicator
from netq.protocol.wire import Frame, FrameKind, Greeting
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder

pytestmark = pytest.mark.slow

INI = Greeting(uuid.UUID(int=99), bytes(16), 2**40, 2**20, 10_000).frame().whole()
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(192)  # how a TLS client begins


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    yield sockets
    for sock in sockets:
        sock.close()


def connect_and_send(server: Communicator, sockets: list[socket.socket], data: bytes) -> str:
    """Connect and send `data`; return this end's address, by which the log names it."""
    sock = socket.create_connection(server.netloc, LIMIT)
    sockets.append(sock)
    sock.sendall(data)
    return "{}:{}".format(*sock.getsockname())


def ended(sock: socket.socket) -> bool:
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "no frame of netq, it begins with b'GET / HT'"),
        (TLS_HELLO, "the peer speaks TLS, this side does not"),
        (b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n", "no frame of netq, it begins with"),
        (random.Random(1).randbytes(200_000), "no frame of netq, it begins with"),
        (INI[:50], "no greeting within 0.3 s"),
        (b"", "no greeting within 0.3 s"),
        (INI[:3], "no greeting within 0.3 s"),
        (INI[:24] + b"HTTP" + INI[28:], "does not speak netq"),
        (Frame(FrameKind.PING).whole(), "PING in state OPENING"),
        (Frame(FrameKind.MSG, length=2**31, number=1, value=2**62).whole(), "MSG in state OPENING"),
        (INI + b"junk" * 20_000, "no frame of netq, it begins with b'junkjunk'"),
        (INI + INI, "INI in state GREETED"),
    ],
)
def test_refused_peer_is_one_line_in_the_log(
    communicators: Communicators, log: LogRecorder, sockets: list[socket.socket], data: bytes, error: str
) -> None:
    server = communicators.server(handshake_timeout=0.3 if error.endswith("within 0.3 s") else LIMIT)
    address = connect_and_send(server, sockets, data)
    client = communicators.client(server.netloc)
    introduce(server, client)
    assert error in log.wait(f"{address}: ")
    assert ended(sockets[0])
    client.put("still here").result(LIMIT)
    assert server.get(timeout=0) == (client.id, "still here")
    assert len(log.having(address)) == 1
    assert set(server.statistics()) == {client.id}


def test_peer_that_hangs_up_is_one_line_in_the_log(
    communicators: Communicators, log: LogRecorder, sockets: list[socket.socket]
) -> None:
    server = communicators.server()
    address = connect_and_send(server, sockets, b"")
    sockets[0].close()
    assert "the peer hung up" in log.wait(f"{address}: ")
    introduce(server, communicators.client(server.netloc))
    assert len(log.having(address)) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_greeting_followed_by_junk_does_not_take_the_id(
    communicators: Communicators, log: LogRecorder, sockets: list[socket.socket], workers: int
) -> None:
    server = communicators.server(workers=workers)
    for junk in (b"\xff" * 24, Frame(FrameKind.PING).whole(), INI):
        address = connect_and_send(server, sockets, INI + junk)
        log.wait(f"{address}: ")
    client = communicators.client(server.netloc, id=uuid.UUID(int=99))
    introduce(server, client)
    assert not log.having("in use")


def test_peer_that_never_stops_sending_delays_no_client(
    communicators: Communicators, log: LogRecorder, sockets: list[socket.socket]
) -> None:
    server = communicators.server()
    connect_and_send(server, sockets, b"")
    stop = threading.Event()

    def flood() -> None:
        junk = bytes(2**20)
        try:
            while not stop.is_set():
                sockets[0].sendall(junk)
        except OSError:
            pass

    with ThreadPoolExecutor() as threads:
        flooding = threads.submit(flood)
        try:
            log.wait("no frame of netq")
            client = communicators.client(server.netloc)
            introduce(server, client)
            flooding.result(LIMIT)  # it is cut, though it does not read
        finally:
            stop.set()


def test_close_does_not_wait_for_strangers(
    communicators: Communicators, log: LogRecorder, sockets: list[socket.socket]
) -> None:
    server = communicators.server()
    connect_and_send(server, sockets, INI[:10])
    introduce(server, client := communicators.client(server.netloc))
    client.close(LIMIT)
    start = time.monotonic()
    assert server.close(LIMIT) == 0
    assert time.monotonic() - start < 5.0
    assert log.wait("the server is closing")
    assert ended(sockets[0])


def test_connections_stay_in_the_queue_while_there_is_no_room(
    communicators: Communicators, sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MAX_LINKS", 4), ("MAX_OF_ORIGIN", 4), ("MIN_TIME", 2 * LIMIT)):
        monkeypatch.setattr(f"netq.runtime.pending_links.{name}", value)
    server = communicators.server(handshake_timeout=2 * LIMIT)
    for _ in range(4):
        connect_and_send(server, sockets, b"")
    while server._endpoint.home.ask(lambda: len(server._endpoint._pending_links)) != 4:
        pass
    client = communicators.client(server.netloc)
    future = client.put("hello")
    with pytest.raises(TimeoutError):
        future.result(0.1)
    sockets[0].close()
    future.result(LIMIT)
    assert server.get(timeout=0) == (client.id, "hello")


def test_slow_connection_loses_its_place_to_a_newcomer(
    communicators: Communicators, log: LogRecorder, sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MAX_OF_ORIGIN", 4), ("MIN_TIME", 0.0)):
        monkeypatch.setattr(f"netq.runtime.pending_links.{name}", value)
    server = communicators.server(handshake_timeout=LIMIT)
    address, *_ = [connect_and_send(server, sockets, b"") for _ in range(4)]
    introduce(server, communicators.client(server.netloc))
    assert "too many connections are in their handshake" in log.wait(f"{address}: ")
    assert ended(sockets[0])


def test_sessions_that_were_never_used_are_bounded(
    communicators: Communicators, sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netq.runtime.endpoint._MOST_UNUSED", 5)
    server = communicators.server()
    used = communicators.client(server.netloc)
    introduce(server, used)
    strangers = [uuid.uuid4() for _ in range(20)]
    for id in strangers:
        connect_and_send(server, sockets, Greeting(id, bytes(16), 2**40, 2**20, 10_000).frame().whole())
        assert sockets[-1].recv(1), "the server's INI"
        sockets[-1].close()
    while len(server.statistics()) > 6:
        pass
    assert set(server.statistics()) == {used.id, *strangers[-5:]}


def begin_session(server: Communicator, sockets: list[socket.socket], host: str = "127.0.0.1") -> uuid.UUID:
    """Begin a session of a new id from an address of this machine, and keep its link."""
    id = uuid.uuid4()
    sock = socket.create_connection(server.netloc, LIMIT, source_address=(host, 0))
    sockets.append(sock)
    sock.sendall(Greeting(id, bytes(16), 2**40, 2**20, 10_000).frame().whole())
    return id


def kind_of_answer(sock: socket.socket) -> int:
    """Return the kind of the frame with which the server answers."""
    return sock.recv(1)[0]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_sessions": 3}, "there are as many sessions as there may be (max_sessions: 3); come again"),
        (
            {"max_sessions_per_address": 3},
            "there are as many sessions of 127.0.0.1 as there may be (max_sessions_per_address: 3); come again",
        ),
    ],
)
def test_sessions_are_bounded(
    communicators: Communicators,
    log: LogRecorder,
    sockets: list[socket.socket],
    limits: Any,
    reason: str,
) -> None:
    server = communicators.server(**limits)
    ids = [begin_session(server, sockets) for _ in range(3)]
    assert [kind_of_answer(sock) for sock in sockets] == [FrameKind.INI] * 3
    begin_session(server, sockets)
    assert kind_of_answer(sockets[-1]) == FrameKind.FIN
    assert reason in log.wait("as there may be")
    assert set(server.statistics()) == set(ids)
    sockets[0].close()  # its session was never used, so it gives way
    late = communicators.client(server.netloc, retry_max=0.1)
    introduce(server, late)
    assert set(server.statistics()) == {late.id, *ids[1:]}


def test_another_address_has_sessions_of_its_own(communicators: Communicators, sockets: list[socket.socket]) -> None:
    server = communicators.server(max_sessions_per_address=2)
    for host in ("127.0.0.1", "127.0.0.1", "127.0.0.2"):
        begin_session(server, sockets, host)
    assert [kind_of_answer(sock) for sock in sockets] == [FrameKind.INI] * 3


def test_places_of_sessions_that_have_ended_are_free(communicators: Communicators) -> None:
    server = communicators.server(max_sessions=1)
    for _ in range(5):
        client = communicators.client(server.netloc, retry_max=0.1)
        introduce(server, client)
        client.close(LIMIT)


def test_a_session_that_was_never_used_ends_after_a_while(
    communicators: Communicators, sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netq.runtime.endpoint._UNUSED_TIME", 0.0)
    monkeypatch.setattr("netq.runtime.endpoint._SWEEP_PERIOD", 0.01)
    server = communicators.server()
    used = communicators.client(server.netloc)
    introduce(server, used)
    begin_session(server, sockets)
    assert kind_of_answer(sockets[0]) == FrameKind.INI
    assert len(server.statistics()) == 2, "while it has a link, it stays"
    sockets[0].close()
    while len(server.statistics()) > 1:
        pass
    assert set(server.statistics()) == {used.id}
