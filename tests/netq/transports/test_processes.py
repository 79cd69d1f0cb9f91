"""A peer whose process is killed. tests/faults has what a process leaves behind when it dies in mid-message."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from signal import SIGTERM

import pytest

from netq import NetworkLocation, Purpose
from netq.testing.fixtures import LIMIT, Communicators
from netq.testing.log import LogRecorder
from tests.programs.child import Children
from tests.wires import SOCKETS, Wire, on

NOTICED = 1.0  # seconds; the heartbeat would need 30


@pytest.mark.slow
def test_client_notices_a_killed_server_and_finds_the_next(
    communicators: Communicators, children: Children, wire: Wire, log: LogRecorder
) -> None:
    first = children.start("echo", wire, Purpose.SERVER)
    netloc = NetworkLocation(*first.receive()["netloc"])
    client = communicators.client(netloc)
    client.put("hello").result(LIMIT)
    assert client.get(timeout=LIMIT).data[0] == "hello"
    start = time.monotonic()
    first.kill()
    log.wait("the broker has lost the server" if wire.broker else "trying again")
    seconds = time.monotonic() - start
    print(f"{wire.kind}: a killed server is noticed after {seconds * 1000:.0f} ms")
    assert seconds < NOTICED
    second = communicators.server(netloc)
    client.put("again").result(LIMIT)
    assert second.get(timeout=LIMIT).data == "again"


@pytest.mark.slow
def test_server_notices_a_killed_client(
    communicators: Communicators, children: Children, wire: Wire, log: LogRecorder
) -> None:
    server = communicators.server()
    client = children.start("sender", wire, Purpose.CLIENT, server.netloc, size=1)
    assert client.receive() == {"ready": True}
    peer = server.get(timeout=LIMIT).peer
    start = time.monotonic()
    client.kill()
    log.wait(f"{peer}: lost (")
    seconds = time.monotonic() - start
    print(f"{wire.kind}: a killed client is noticed after {seconds * 1000:.0f} ms")
    assert seconds < NOTICED
    assert [figures.connected for figures in server.statistics().values()] == [False]
    communicators.abort(server)


@pytest.mark.slow
@on(*SOCKETS)
def test_server_without_descriptors_accepts_clients_later(
    communicators: Communicators, children: Children, wire: Wire
) -> None:
    program = children.start("exhausted", wire, Purpose.SERVER)
    netloc = NetworkLocation(*program.receive()["netloc"])
    with ExitStack() as idle:
        for _ in range(100):
            idle.enter_context(socket.create_connection(netloc, LIMIT))
        line = program.receive()["log"]
        assert "no connection can be accepted for now" in line
        assert "Too many open files" in line
        client = communicators.client(netloc)
        client.put("I can wait")
    assert client.get(timeout=LIMIT).data == "I can wait"
    communicators.release(client)
    client.close(LIMIT)
    program.signal(SIGTERM)
    assert program.process.wait(LIMIT) == 0
    assert program.errors() == ""
