"""Bytes from clients of other protocols: their connection ends in time, and netq's clients are served meanwhile."""

from __future__ import annotations

import random
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from netq.protocol.wire import Greeting
from netq.runtime.pending_links import MAX_LINKS
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from tests.attacks import sessions
from tests.wires import Wire, on

BOUND = ("tcp", "tls", "grpc")  # the server accepts TCP connections
INI = Greeting(uuid.UUID(int=99), bytes(16), 2**40, 2**20, 10_000).frame().whole()
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(192)
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")  # the preface, and SETTINGS

Connect = Callable[..., socket.socket]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connect to a server and send bytes; the sockets close with the test."""
    with ExitStack() as stack:

        def connect(netloc: tuple[str, int], data: bytes) -> socket.socket:
            sock = stack.enter_context(socket.create_connection(netloc, LIMIT))
            sock.sendall(data)
            return sock

        yield connect


def wait_for_end(sock: socket.socket) -> None:
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass


@pytest.mark.slow
@on(*BOUND)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        TLS_HELLO,
        b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n",
        random.Random(1).randbytes(200_000),
        HTTP2,
        HTTP2[:10],
        INI[:50],
        INI + INI,
    ],
    ids=["nothing", "http", "tls", "ssh", "noise", "http2", "half a preface", "half an INI", "two INIs"],
)
def test_bytes_of_another_protocol_end_their_connection(
    communicators: Communicators, connect: Connect, data: bytes
) -> None:
    server = communicators.server(handshake_timeout=0.3)
    start = time.monotonic()
    sock = connect(server.netloc, data)
    client = communicators.client(server.netloc, handshake_timeout=LIMIT)
    introduce(server, client)
    wait_for_end(sock)
    assert time.monotonic() - start < 0.3 + 3.0
    client.put("still here").result(LIMIT)
    assert server.get(timeout=0) == (client.id, "still here")
    assert set(server.statistics()) == {client.id}


@on(*BOUND)
@pytest.mark.slow
def test_200_silent_connections_end_in_time_and_delay_no_client(
    communicators: Communicators, wire: Wire, log: LogRecorder, connect: Connect
) -> None:
    server = communicators.server(handshake_timeout=5.0)
    begins = {"tcp": (INI[:10], b""), "tls": (TLS_HELLO[:10], b""), "grpc": (HTTP2, b"")}[wire.kind]
    start = time.monotonic()
    socks = [connect(server.netloc, begins[number % 2]) for number in range(200)]
    introduce(server, communicators.client(server.netloc))
    assert time.monotonic() - start < 5.0
    for sock in socks:
        wait_for_end(sock)
    if wire.kind != "grpc":  # which does not report connections without a stream
        log.wait("no greeting within 5 s", 200)


@pytest.mark.slow
@on(*BOUND)
@pytest.mark.parametrize("data", [INI, TLS_HELLO, HTTP2], ids=["netq", "tls", "http2"])
def test_bytes_that_trickle_in_do_not_extend_the_handshake(
    communicators: Communicators, connect: Connect, data: bytes
) -> None:
    server = communicators.server(handshake_timeout=1.0)
    sock = connect(server.netloc, data[:1])
    sock.settimeout(0.05)
    start = time.monotonic()
    ended = False
    for byte in data[1:]:
        try:
            sock.sendall(bytes([byte]))
            ended = not sock.recv(4096)
        except TimeoutError:  # nothing came for 0.05 s
            continue
        except OSError:
            ended = True
        if ended:
            break
    assert ended
    assert time.monotonic() - start < 10.0


@pytest.mark.slow
@on(*BOUND)
def test_more_slow_connections_than_places_keep_no_client_out(communicators: Communicators, connect: Connect) -> None:
    server = communicators.server(handshake_timeout=2 * LIMIT)
    for _ in range(MAX_LINKS + 10):
        with suppress(ConnectionResetError):  # one that lost its place before this side had noticed that it got one
            connect(server.netloc, b"")
    introduce(server, communicators.client(server.netloc))


@on("grpc", "mqtt", "shm")  # those of TCP are in tests/netq/tcp/test_strangers.py
def test_client_connects_when_there_is_room_again(
    communicators: Communicators, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = communicators.server()
    answers = iter([False, False])
    monkeypatch.setattr(server._endpoint, "has_room", lambda: next(answers, True))
    introduce(server, communicators.client(server.netloc))
    assert next(answers, None) is None


@pytest.mark.slow
@on(*BOUND)
def test_close_does_not_wait_for_strangers(communicators: Communicators, connect: Connect) -> None:
    server = communicators.server()
    sock = connect(server.netloc, b"")
    introduce(server, client := communicators.client(server.netloc))
    client.close(LIMIT)
    start = time.monotonic()
    assert server.close(LIMIT) == 0
    assert time.monotonic() - start < 5.0
    wait_for_end(sock)


@on("tcp")
def test_ids_of_one_hash_are_few(communicators: Communicators, log: LogRecorder, connect: Connect) -> None:
    """A client can choose ids that are in one place of every dict: each look-up would search all of them."""
    server = communicators.server()
    ids = sessions.ids(20)
    assert {hash(id) for id in ids} == {1}
    for id in ids:
        connect(server.netloc, Greeting(id, bytes(16), 2**40, 2**20, 10_000).frame().whole())
    log.wait("sessions have ids of the hash of")
    introduce(server, communicators.client(server.netloc))
    assert sum(id in ids for id in server.statistics()) <= 8
