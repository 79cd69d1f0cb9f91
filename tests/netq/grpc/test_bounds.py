"""What strangers cost, and what is left when something fails on the way up."""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import threading
from typing import Any

import pytest

import netq
from netq import CommunicatorOptions, ConnectionOptions, NetworkLocation, Protocol, Purpose
from netq.grpc import event_loop
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from tests.servers import ports

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING = 4, 6
MAX_CONCURRENT_STREAMS = 3


def frame(kind: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, 0, 0, 0, 0, 0]) + body


def settings_of(server: NetworkLocation) -> dict[int, int]:
    """What a server says first (RFC 9113, 6.5)."""
    with socket.create_connection(server, LIMIT) as sock:
        sock.sendall(PREFACE + frame(SETTINGS))
        head = receive(sock, 9)
        assert head[3] == SETTINGS
        return dict(struct.iter_unpack(">HI", receive(sock, int.from_bytes(head[:3], "big"))))


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        assert more, "hung up"
        data += more
    return data


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_streams_of_a_connection_are_limited(communicators: Communicators) -> None:
    assert settings_of(communicators.server().netloc)[MAX_CONCURRENT_STREAMS] == 16


@pytest.mark.slow
def test_flood_of_pings_needs_little_memory(communicators: Communicators) -> None:
    server = communicators.server()
    before, pings = resident(), frame(PING, bytes(8)) * 10_000
    with socket.create_connection(server.netloc, LIMIT) as sock:
        sock.sendall(PREFACE + frame(SETTINGS))
        sock.settimeout(1.0)
        with contextlib.suppress(TimeoutError, ConnectionError):  # it reads no more of them, or hangs up
            for _ in range(200):
                sock.sendall(pings)
        introduce(server, communicators.client(server.netloc))
        assert resident() - before < 100 * 2**20


def test_handshake_timeout_may_be_infinite(communicators: Communicators) -> None:
    server = communicators.server(handshake_timeout=math.inf)
    introduce(server, communicators.client(server.netloc, handshake_timeout=math.inf))


@pytest.mark.parametrize("purpose", Purpose)
def test_failed_constructor_releases_the_event_loop(monkeypatch: pytest.MonkeyPatch, purpose: Purpose) -> None:
    make = socket.socket

    def make_some(family: int = -1, kind: int = -1, *rest: Any, **named: Any) -> socket.socket:
        if kind == socket.SOCK_DGRAM:
            raise OSError(24, "Too many open files")
        return make(family, kind, *rest, **named)

    monkeypatch.setattr(socket, "socket", make_some)
    with pytest.raises(OSError, match="Too many open files"):
        netq.new(Protocol.GRPC, purpose, CommunicatorOptions(netloc=ports.free()))
    assert event_loop._state.event_loop is None


def test_client_retries_without_a_thread_for_the_lookup(
    communicators: Communicators, log: LogRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, start, refusals = communicators.server(), threading.Thread.start, 3

    def refuse(thread: threading.Thread) -> None:
        nonlocal refusals
        if thread.name == "netq-resolve" and refusals:
            refusals -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    client = communicators.client(NetworkLocation("localhost", server.netloc.port))
    assert "cannot be resolved: can't start new thread" in log.wait("trying again")
    introduce(server, client)
    assert refusals == 0


def test_proxy_of_the_environment_is_ignored(communicators: Communicators, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    server = communicators.server()
    introduce(server, communicators.client(server.netloc))


@pytest.mark.slow
def test_server_that_hangs_up_after_its_greeting_fails_at_once(communicators: Communicators, log: LogRecorder) -> None:
    """It may do so between two looks at the channel: one attempt in some thirty stood still then."""
    greeted, over = 0, threading.Event()

    def greet() -> None:
        nonlocal greeted
        while not over.is_set():
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            with sock:
                sock.sendall(frame(SETTINGS))
                greeted += 1

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        thread = threading.Thread(target=greet)
        thread.start()
        options = CommunicatorOptions(
            netloc=NetworkLocation(*listener.getsockname()),
            connection=ConnectionOptions(retry_min=0.001, retry_max=0.005, linger=0.0, handshake_timeout=60.0),
        )
        with netq.new(Protocol.GRPC, Purpose.CLIENT, options):
            while greeted < 300:
                over.wait(0.01)
        over.set()
        thread.join()
    assert not log.having("does not answer")
