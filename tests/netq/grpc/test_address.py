"""Addresses: taken, unknown, silent, and of the other family."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from netq import AddressError, Closed, CommunicatorOptions, NetworkLocation, Protocol, Purpose, new
from netq.testing.fixtures import Communicators, introduce
from netq.testing.log import LogRecorder


@pytest.fixture
def silent() -> Iterator[NetworkLocation]:
    """An address at which the system takes the connection, and nobody says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield NetworkLocation(*listener.getsockname())


def serve(netloc: NetworkLocation, workers: int = 1) -> None:
    new(Protocol.GRPC, Purpose.SERVER, CommunicatorOptions(netloc=netloc, workers=workers))


def test_port_0_is_one_that_is_free(communicators: Communicators) -> None:
    first, second = communicators.server(), communicators.server()
    assert 0 < first.netloc.port != second.netloc.port > 0


def test_a_port_that_is_taken_is_named_and_nothing_is_left_open(communicators: Communicators) -> None:
    server = communicators.server()
    host, port = server.netloc
    with pytest.raises(AddressError, match=f"{host}:{port}.*in use.*choose another port"):
        serve(server.netloc, workers=3)
    introduce(server, communicators.client(server.netloc))


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_an_address_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(AddressError, match=f"cannot listen at {host}:0.*an address of this machine"):
        serve(NetworkLocation(host, 0))


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
    assert client.close() == 0


def test_nobody_there_is_named_once_and_tried_again(communicators: Communicators, log: LogRecorder) -> None:
    client = communicators.client(communicators.unused_address())
    where = "{}:{}".format(*client.netloc)
    assert log.wait("trying again") == f"{where}: Connection refused; trying again until it answers"
    while client._hub._attempt < 4:
        with pytest.raises(TimeoutError):
            client.get(timeout=0.01)
    assert len(log.having("trying again")) == 1


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


def test_a_client_that_is_closed_in_the_middle_of_an_attempt_lets_go_of_grpc(
    communicators: Communicators, silent: NetworkLocation
) -> None:
    for _ in range(10):
        client = communicators.client(silent)
        with pytest.raises(TimeoutError):
            client.get(timeout=0.02)
        assert client.close() == 0
    deadline = time.monotonic() + 2.0
    while grpc_threads() and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert not grpc_threads()


def grpc_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "_poll_wrapper" in thread.name]


def test_localhost_by_name(communicators: Communicators) -> None:
    server = communicators.server(NetworkLocation("localhost", 0))
    introduce(server, communicators.client(NetworkLocation("localhost", server.netloc.port)))


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6(communicators: Communicators) -> None:
    server = communicators.server(NetworkLocation("::1", 0))
    introduce(server, communicators.client(server.netloc))


def test_all_addresses_of_the_machine(communicators: Communicators) -> None:
    server = communicators.server(NetworkLocation("0.0.0.0", 0))
    introduce(server, communicators.client(NetworkLocation("127.0.0.1", server.netloc.port)))


def test_the_threads_of_all_communicators_are_one_for_grpc(communicators: Communicators) -> None:
    server = communicators.server()
    introduce(server, *[communicators.client(server.netloc) for _ in range(5)])
    assert [thread.name for thread in threading.enumerate()].count("netq-grpc") == 1
