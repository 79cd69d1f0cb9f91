"""Headers that announce more than there is: the server takes no memory for bytes that have not come."""

from __future__ import annotations

import contextlib
import socket
import ssl
import uuid
from collections.abc import Iterator

import pytest

from netq import NetworkLocation, Purpose
from netq.protocol.wire import Frame, FrameKind, Greeting
from netq.testing.fixtures import LIMIT
from tests.programs.child import Children
from tests.wires import SOCKETS, NewWire

MIB = 2**20
BOMBS = [
    Frame(FrameKind.MSG, length=2**31, number=1, value=2**31),
    Frame(FrameKind.MSG, length=2**32 - 1, number=1, value=2**40),
    Frame(FrameKind.MSG, length=2**32 - 1, number=1, value=2**62),
    Frame(FrameKind.MSG, length=1, number=1, value=2**63),
    Frame(FrameKind.MSG, length=2**32 - 1, number=1, value=2**64 - 1),
    Frame(FrameKind.DROP, number=1, value=2**63),
    Frame(FrameKind.ACK, length=2**32 - 1),
    Frame(FrameKind.PING, length=2**31),
    Frame(FrameKind.FIN, length=2**31, number=1),
    Frame(FrameKind.INI, length=2**31),
]


@contextlib.contextmanager
def connection(netloc: NetworkLocation, secure: bool) -> Iterator[socket.socket]:
    with socket.create_connection(netloc, LIMIT) as sock:
        if not secure:
            yield sock
            return
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(sock) as wrapped:
            yield wrapped


def send(netloc: NetworkLocation, secure: bool, frames: list[bytes]) -> None:
    """Send frames after an INI; a PING behind them, or the end of the connection, shows that they were read."""
    greeting = Greeting(uuid.uuid4(), uuid.uuid4().bytes, 2**40, 2**18, 10_000)
    with connection(netloc, secure) as sock:
        sock.sendall(greeting.frame().whole())
        assert sock.recv(1), "the server's INI"
        with contextlib.suppress(OSError):
            for frame in frames:
                sock.sendall(frame)
            while sock.recv(65536):
                pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOCKETS)
def test_announced_bytes_cost_no_memory(children: Children, new_wire: NewWire, kind: str) -> None:
    server = children.start("audience", new_wire(kind), Purpose.SERVER, connection={"heartbeat": 0.1, "misses": 3})
    netloc = NetworkLocation(*server.receive()["netloc"])
    send(netloc, kind == "tls", [b"\xff" * 24])  # what is made only once
    before = server.ask("cost")["private"]
    for bomb in BOMBS:
        send(netloc, kind == "tls", [bomb.header()])
        assert server.ask("cost")["private"] - before < MIB
