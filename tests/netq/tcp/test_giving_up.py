"""A link that is given up leaves nothing behind to be delivered later; one that ends politely loses no word.

The peers are sockets of the test, which see the difference: a reset, or an end.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from netq import NetworkLocation, SecurityOptions
from netq.protocol.wire import Code, Cursor, Frame, Greeting, Kind
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


def heard(sock: socket.socket) -> bytes:
    """All that comes until the end. Raises ConnectionResetError if it is none."""
    sock.settimeout(LIMIT)
    data = bytearray()
    while more := sock.recv(65536):
        data += more
    return bytes(data)


@pytest.mark.parametrize("secure", [False, True], ids=["tcp", "tls"])
def test_a_link_that_nobody_answers_is_reset(
    communicators: Communicators, listener: socket.socket, files: certificates.Files, secure: bool
) -> None:
    """Its greeting would else go on being sent, and be taken for a newer link than the next one."""
    security = SecurityOptions(certificate=files.authority) if secure else None
    communicators.client(NetworkLocation(*listener.getsockname()), handshake_timeout=0.2, security=security)
    for _ in range(2):
        sock, _ = listener.accept()
        with sock, pytest.raises(ConnectionResetError):
            heard(sock)


def test_a_client_resets_a_link_whose_server_has_become_silent(
    communicators: Communicators, listener: socket.socket
) -> None:
    client = communicators.client(NetworkLocation(*listener.getsockname()), **BEATS)
    sock, _ = listener.accept()
    with sock:
        sock.sendall(Greeting(uuid.UUID(int=98), bytes(16), 2**40, 2**20, 100, epoch=1).frame().whole())
        with pytest.raises(ConnectionResetError):
            heard(sock)
    communicators.abort(client)


def test_a_server_resets_a_link_whose_client_has_become_silent(communicators: Communicators) -> None:
    server = communicators.server(**BEATS)
    with socket.create_connection(server.netloc, LIMIT) as sock:
        sock.sendall(HELLO)
        with pytest.raises(ConnectionResetError):
            heard(sock)
    communicators.abort(server)


def test_a_refusal_is_said_and_not_cut_off_by_a_reset(communicators: Communicators) -> None:
    server = communicators.server()
    with socket.create_connection(server.netloc, LIMIT) as sock:
        sock.sendall(Greeting(server.id, bytes(16), 2**40, 2**20, 100).frame().whole())
        assert b"is the server's own" in heard(sock)


def test_the_older_of_two_links_is_told_and_not_reset(communicators: Communicators) -> None:
    server = communicators.server()
    with (
        socket.create_connection(server.netloc, LIMIT) as older,
        socket.create_connection(server.netloc, LIMIT) as newer,
    ):
        older.sendall(HELLO)
        older.recv(24, socket.MSG_WAITALL)  # the server has answered
        newer.sendall(AGAIN)
        assert b"a newer link has taken the session over" in heard(older)
    communicators.abort(server)


def test_a_goodbye_is_said_and_not_cut_off_by_a_reset(communicators: Communicators) -> None:
    server = communicators.server()
    with socket.create_connection(server.netloc, LIMIT) as sock:
        goodbye = Frame(Kind.FIN, number=Code.DONE).whole()
        sock.sendall(HELLO)
        sock.recv(24, socket.MSG_WAITALL)
        sock.sendall(goodbye)
        assert heard(sock).endswith(goodbye)


def test_a_refusal_of_a_session_that_was_found_is_said_and_not_cut_off_by_a_reset(communicators: Communicators) -> None:
    server = communicators.server()
    beyond = Cursor(0, 1, 0, 2**20)  # of a message that the server has never sent
    with (
        socket.create_connection(server.netloc, LIMIT) as older,
        socket.create_connection(server.netloc, LIMIT) as newer,
    ):
        older.sendall(HELLO)
        older.recv(24, socket.MSG_WAITALL)
        newer.sendall(
            Greeting(uuid.UUID(int=99), bytes(16), 2**40, 2**20, 100, (beyond,), resume=True, epoch=1).frame().whole()
        )
        assert heard(newer)[:1] == bytes([Kind.FIN])
    communicators.abort(server)
