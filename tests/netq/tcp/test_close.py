"""How a link ends: with a reset after silence, and in order after FIN.

A reset discards what the system would deliver later. An orderly end loses no byte. The peers are sockets of the test.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from netq import NetworkLocation, SecurityOptions
from netq.protocol.wire import Code, Cursor, Frame, FrameKind, Greeting
from netq.security import certificates
from netq.testing.fixtures import LIMIT, Communicators

BEATS: dict[str, Any] = {"heartbeat": 0.1, "misses": 2}
HELLO = Greeting(uuid.UUID(int=99), bytes(16), 2**40, 2**20, 100).frame().whole()
AGAIN = Greeting(uuid.UUID(int=99), bytes(16), 2**40, 2**20, 100, resume=True, epoch=1).frame().whole()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT)
        yield listener


def read_to_end(sock: socket.socket) -> bytes:
    """Return all bytes up to the orderly end. Raises ConnectionResetError after a reset."""
    sock.settimeout(LIMIT)
    data = bytearray()
    while more := sock.recv(65536):
        data += more
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True], ids=["tcp", "tls"])
def test_link_without_an_answer_is_reset(
    communicators: Communicators, listener: socket.socket, files: certificates.Files, secure: bool
) -> None:
    """Otherwise the system goes on sending its INI, which then looks like a newer link than the next one."""
    security = SecurityOptions(certificate=files.authority) if secure else None
    communicators.client(NetworkLocation(*listener.getsockname()), handshake_timeout=0.2, security=security)
    for _ in range(2):
        sock, _ = listener.accept()
        with sock, pytest.raises(ConnectionResetError):
            read_to_end(sock)


def test_client_resets_a_link_to_a_silent_server(communicators: Communicators, listener: socket.socket) -> None:
    client = communicators.client(NetworkLocation(*listener.getsockname()), **BEATS)
    sock, _ = listener.accept()
    with sock:
        sock.sendall(Greeting(uuid.UUID(int=98), bytes(16), 2**40, 2**20, 100, epoch=1).frame().whole())
        with pytest.raises(ConnectionResetError):
            read_to_end(sock)
    communicators.abort(client)


def test_server_resets_a_link_to_a_silent_client(communicators: Communicators) -> None:
    server = communicators.server(**BEATS)
    with socket.create_connection(server.netloc, LIMIT) as sock:
        sock.sendall(HELLO)
        with pytest.raises(ConnectionResetError):
            read_to_end(sock)
    communicators.abort(server)


def test_refusal_arrives_without_a_reset(communicators: Communicators) -> None:
    server = communicators.server()
    with socket.create_connection(server.netloc, LIMIT) as sock:
        sock.sendall(Greeting(server.id, bytes(16), 2**40, 2**20, 100).frame().whole())
        assert b"is the server's own" in read_to_end(sock)


def test_replaced_link_gets_the_reason_without_a_reset(communicators: Communicators) -> None:
    server = communicators.server()
    with (
        socket.create_connection(server.netloc, LIMIT) as older,
        socket.create_connection(server.netloc, LIMIT) as newer,
    ):
        older.sendall(HELLO)
        older.recv(24, socket.MSG_WAITALL)  # the server has answered
        newer.sendall(AGAIN)
        assert b"a newer link has taken the session over" in read_to_end(older)
    communicators.abort(server)


def test_fin_arrives_without_a_reset(communicators: Communicators) -> None:
    server = communicators.server()
    with socket.create_connection(server.netloc, LIMIT) as sock:
        fin = Frame(FrameKind.FIN, number=Code.DONE).whole()
        sock.sendall(HELLO)
        sock.recv(24, socket.MSG_WAITALL)
        sock.sendall(fin)
        assert read_to_end(sock).endswith(fin)


def test_refusal_of_a_found_session_arrives_without_a_reset(communicators: Communicators) -> None:
    server = communicators.server()
    beyond = Cursor(0, 1, 0, 2**20)  # acknowledges a message that the server never sent
    with (
        socket.create_connection(server.netloc, LIMIT) as older,
        socket.create_connection(server.netloc, LIMIT) as newer,
    ):
        older.sendall(HELLO)
        older.recv(24, socket.MSG_WAITALL)
        newer.sendall(
            Greeting(uuid.UUID(int=99), bytes(16), 2**40, 2**20, 100, (beyond,), resume=True, epoch=1).frame().whole()
        )
        assert read_to_end(newer)[:1] == bytes([FrameKind.FIN])
    communicators.abort(server)


@pytest.mark.parametrize("answers", [True, False])
def test_client_that_closes_in_its_handshake_waits_for_the_answer(
    communicators: Communicators, listener: socket.socket, answers: bool
) -> None:
    """Its server has begun the session, and would keep it."""
    client = communicators.client(NetworkLocation(*listener.getsockname()))
    sock, _ = listener.accept()
    with sock, ThreadPoolExecutor() as threads:
        closing = threads.submit(client.close, LIMIT)
        while not client._endpoint.closing:
            pass
        if answers:
            sock.sendall(Greeting(uuid.UUID(int=98), bytes(16), 2**40, 2**20, 100, epoch=1).frame().whole())
            sock.sendall(Frame(FrameKind.FIN).whole())
            assert read_to_end(sock).endswith(Frame(FrameKind.FIN).whole())
        else:
            assert not closing.done()
            sock.close()
        assert closing.result(LIMIT) == 0
