"""Addresses: taken, unknown, silent, and of the other family."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from netq import AddressError, Closed, CommunicatorOptions, NetworkLocation, Purpose, new
from netq.io.connect import is_own_end
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder


@pytest.fixture
def silent() -> Iterator[NetworkLocation]:
    """An address at which the system answers nobody: the queue of its listener is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(listener.getsockname())
        yield NetworkLocation(*listener.getsockname())


def test_a_port_that_is_taken_is_named_and_nothing_is_left_open(communicators: Communicators) -> None:
    server = communicators.server()
    host, port = server.netloc
    with pytest.raises(AddressError, match=f"{host}:{port}.*in use.*choose another port"):
        new(purpose=Purpose.SERVER, options=CommunicatorOptions(netloc=server.netloc, workers=3))
    introduce(server, communicators.client(server.netloc))


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_an_address_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(AddressError, match=f"cannot listen at {host}:0"):
        new(purpose=Purpose.SERVER, options=CommunicatorOptions(netloc=NetworkLocation(host, 0)))


@pytest.mark.parametrize("host", ["nowhere.invalid", "an..empty.label"])
def test_a_name_that_cannot_be_resolved_is_named_once_and_tried_again(
    communicators: Communicators, log: LogRecorder, host: str
) -> None:
    client = communicators.client(NetworkLocation(host, 1))
    assert log.wait("trying again").startswith(f"{host}:1: the name cannot be resolved: ")
    while client._hub._attempt < 4:
        with pytest.raises(TimeoutError):
            client.get(timeout=0.01)
    assert len(log.having("trying again")) == 1
    start = time.monotonic()
    assert client.close() == 0
    assert time.monotonic() - start < 5.0


def test_a_host_that_does_not_answer_is_named_once_and_tried_again(
    communicators: Communicators, log: LogRecorder, silent: NetworkLocation
) -> None:
    client = communicators.client(silent, handshake_timeout=0.05, linger=0.1)
    future = client.put("nobody hears it")
    assert log.wait("trying again") == f"127.0.0.1:{silent.port}: it does not answer; trying again until it answers"
    while client._hub._attempt < 4:
        with pytest.raises(TimeoutError):
            client.get(timeout=0.01)
    assert len(log.having("trying again")) == 1
    start = time.monotonic()
    assert client.close() == 1
    assert time.monotonic() - start < 5.0
    assert isinstance(future.exception(0), Closed)
    communicators.release(client)


def test_localhost_by_name(communicators: Communicators) -> None:
    server = communicators.server(NetworkLocation("localhost", 0))
    introduce(server, communicators.client(NetworkLocation("localhost", server.netloc.port)))


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6(communicators: Communicators) -> None:
    server = communicators.server(NetworkLocation("::1", 0))
    introduce(server, communicators.client(server.netloc))


def test_a_socket_that_reached_itself_is_known() -> None:
    """A client that tries again and again at a port of the ephemeral range will be given that very port one day."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        assert is_own_end(sock)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as near,
        listener.accept()[0] as far,
    ):
        assert not is_own_end(near)
        assert not is_own_end(far)


def test_the_server_s_own_id_is_refused(communicators: Communicators, log: LogRecorder) -> None:
    server = communicators.server()
    client = communicators.client(server.netloc, id=server.id, linger=0.0)
    client.put("never")
    log.wait(f"the id {server.id} is the server's own")
    assert server.statistics() == {}
    assert client.close(LIMIT) == 1
    communicators.release(client)


def test_a_copy_without_the_token_is_refused(communicators: Communicators, log: LogRecorder) -> None:
    server, client = communicators.pair()
    thief = communicators.client(server.netloc, id=client.id, linger=0.0)
    thief.put("never")
    log.wait(f"the id {client.id} is in use by another client")
    log.wait("the peer refuses: the id")
    client.put("mine").result(LIMIT)
    assert server.get(timeout=0).data == "mine"
    assert thief.close(LIMIT) == 1
    communicators.release(thief)
