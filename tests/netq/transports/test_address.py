"""Addresses: in use, not local, not resolvable, refused, silent, of both families. And ids that a server refuses."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from netq import AddressError, Closed, InvalidOption, NetworkLocation
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from tests.netq.conftest import Attempts
from tests.servers import ports
from tests.wires import LISTENING, PROXIED, Wire, on

Silent = Callable[[], contextlib.AbstractContextManager[NetworkLocation]]
BOUND = ("tcp", "tls", "grpc")  # the server binds a socket to a host and a port


@on(*LISTENING)
def test_port_0_is_a_free_port(communicators: Communicators) -> None:
    first, second = communicators.server(), communicators.server()
    assert 0 < first.netloc.port != second.netloc.port > 0


@on(*LISTENING)
def test_port_in_use_is_named(communicators: Communicators) -> None:
    """The constructor that fails leaves nothing open: tests/conftest.py checks that."""
    server = communicators.server()
    host, port = server.netloc
    with pytest.raises(AddressError, match=f"{host}:{port}.*in use.*choose another port"):
        communicators.server(server.netloc, workers=3)
    introduce(server, communicators.client(server.netloc))


@on(*BOUND)
@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_host_that_is_not_local_is_named(communicators: Communicators, host: str) -> None:
    with pytest.raises(AddressError, match=f"cannot listen at {host}:0.*an address of this machine"):
        communicators.server(NetworkLocation(host, 0))


@on(*BOUND)
@pytest.mark.parametrize("host", ["an..empty.label", ".", "x" * 70, "\ud800"])
def test_host_that_no_name_server_can_know_is_named(communicators: Communicators, host: str) -> None:
    with pytest.raises(AddressError, match=f"cannot listen at {re.escape(host)}:0 .*: no name of a host"):
        communicators.server(NetworkLocation(host, 0))


@pytest.mark.parametrize("host", ["/run/netq.sock", "unix:netq.sock", "tcp://127.0.0.1", "127.0.0.1:80", "[::1]"])
@on(*PROXIED)
def test_path_or_url_in_place_of_a_host_is_named(communicators: Communicators, wire: Wire, host: str) -> None:
    expected = "; expected a host's name or address, without port or scheme; only Protocol.SHM takes the path"
    with pytest.raises(InvalidOption, match=re.escape(f"CommunicatorOptions.netloc: {host!r}{expected}")):
        communicators.client(NetworkLocation(host, 1))
    if wire.kind in BOUND:
        with pytest.raises(AddressError, match=re.escape(f"cannot listen at {host}:1 ") + ".*" + expected):
            communicators.server(NetworkLocation(host, 1))


@pytest.mark.parametrize(
    ("wire", "host"),
    [
        *[(kind, "nowhere.invalid") for kind in PROXIED],
        *[(kind, "an..empty.label") for kind in PROXIED if kind != "tls"],  # where no certificate could match it
    ],
    indirect=["wire"],
)
def test_unresolvable_name_is_logged_once_and_retried(
    communicators: Communicators, log: LogRecorder, attempts: Attempts, host: str
) -> None:
    client = communicators.client(NetworkLocation(host, 1))
    assert log.wait("trying again").startswith(f"{host}:1: the name cannot be resolved: ")
    attempts.wait(4)
    assert len(log.having("trying again")) == 1
    start = time.monotonic()
    assert client.close() == 0
    assert time.monotonic() - start < 5.0


def test_refused_connection_is_logged_once_and_retried(
    communicators: Communicators, wire: Wire, log: LogRecorder, attempts: Attempts
) -> None:
    unused = ports.free() if wire.kind in PROXIED else communicators.unused_address()
    client = communicators.client(unused)
    line = log.wait("trying again")
    assert line.startswith("{}:{}: ".format(*unused))
    assert line.endswith("Connection refused; trying again until it answers")
    attempts.wait(4)
    assert len(log.having("trying again")) == 1
    assert client.close() == 0


@contextlib.contextmanager
def unaccepted() -> Iterator[NetworkLocation]:
    """An address where the system does not answer a SYN: the listener's queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(listener.getsockname())
        yield NetworkLocation(*listener.getsockname())


@contextlib.contextmanager
def speechless() -> Iterator[NetworkLocation]:
    """An address where the system accepts connections, and the server sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield NetworkLocation(*listener.getsockname())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wire", "silent", "reason"),
    [
        *[(kind, unaccepted, "it does not answer") for kind in PROXIED],
        ("tcp", speechless, "no greeting within 0.05 s"),
        ("tls", speechless, "no greeting within 0.05 s"),
        ("mqtt", speechless, "it does not answer as a broker"),
        ("grpc", speechless, "it does not answer"),
    ],
    indirect=["wire"],
)
def test_silent_host_is_logged_once_and_retried(
    communicators: Communicators, log: LogRecorder, attempts: Attempts, silent: Silent, reason: str
) -> None:
    with silent() as netloc:
        client = communicators.client(netloc, handshake_timeout=0.05, linger=0.1)
        future = client.put("never arrives")
        assert log.wait("trying again") == f"127.0.0.1:{netloc.port}: {reason}; trying again until it answers"
        attempts.wait(4)
        assert len(log.having("trying again")) == 1
        start = time.monotonic()
        assert client.close() == 1
        assert time.monotonic() - start < 5.0
        assert isinstance(future.exception(0), Closed)
        communicators.release(client)


@on(*LISTENING)
def test_localhost_by_name(communicators: Communicators) -> None:
    server = communicators.server(NetworkLocation("localhost", 0))
    introduce(server, communicators.client(NetworkLocation("localhost", server.netloc.port)))


@on(*LISTENING)
@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6(communicators: Communicators) -> None:
    server = communicators.server(NetworkLocation("::1", 0))
    introduce(server, communicators.client(server.netloc))


@on(*LISTENING)
def test_all_addresses_of_the_machine(communicators: Communicators) -> None:
    server = communicators.server(NetworkLocation("0.0.0.0", 0))
    introduce(server, communicators.client(NetworkLocation("127.0.0.1", server.netloc.port)))


def test_id_of_the_server_is_refused(communicators: Communicators, log: LogRecorder) -> None:
    server = communicators.server()
    client = communicators.client(server.netloc, id=server.id, linger=0.0)
    client.put("never")
    log.wait(f"the id {server.id} is the server's own")
    assert server.statistics() == {}
    assert client.close(LIMIT) == 1
    communicators.release(client)


def test_id_in_use_without_its_token_is_refused(communicators: Communicators, log: LogRecorder) -> None:
    server, client = communicators.pair()
    thief = communicators.client(server.netloc, id=client.id, linger=0.0)
    thief.put("never")
    log.wait(f"the id {client.id} is in use by another client")
    log.wait("the peer refuses: the id")
    client.put("mine").result(LIMIT)
    assert server.get(timeout=0).data == "mine"
    assert thief.close(LIMIT) == 1
    communicators.release(thief)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("made", [0, 1])
def test_thread_that_cannot_be_started_leaves_nothing_open(
    communicators: Communicators, wire: Wire, monkeypatch: pytest.MonkeyPatch, workers: int, made: int
) -> None:
    """As on a board at its limit of threads: tests/conftest.py checks that no thread and no descriptor is left."""
    if made and wire.kind == "grpc":
        pytest.skip("grpc's own thread is missing then, and grpc may leave descriptors")
    netloc = communicators.unused_address()
    budget, start = [made], threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if not budget[0]:
            raise RuntimeError("can't start new thread")
        budget[0] -= 1
        start(thread)

    for make in (communicators.server, communicators.client):
        budget[0] = made
        with monkeypatch.context() as context:
            context.setattr(threading.Thread, "start", limited)
            if made:  # the communicator may be complete with that, or a library needs one more
                with contextlib.suppress(RuntimeError):
                    make(netloc, workers=workers)
            else:
                with pytest.raises(RuntimeError, match=r"of a communicator cannot be started: .*; end some threads"):
                    make(netloc, workers=workers)
