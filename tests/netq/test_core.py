"""What a communicator does when its own house is not in order."""

from __future__ import annotations

import copy
import functools
import logging
import math
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

import netq
from netq import (
    AddressError,
    Closed,
    CommunicatorOptions,
    ConnectionOptions,
    Message,
    NetworkLocation,
    Protocol,
    SerializationOptions,
)
from netq.core import Communicator
from netq.options import Purpose
from netq.runtime.delivery import Delivery
from netq.runtime.peer import Interrupted
from netq.testing import loopback
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from netq.utils.stream import BytesSerializer, PickleSerializer


def make(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
    return loopback.Server(options) if purpose is Purpose.SERVER else loopback.Client(options)


@pytest.fixture
def communicators() -> Iterator[Communicators]:
    with Communicators(make) as communicators:
        yield communicators


def crash() -> None:
    raise LookupError("a bug of ours")


@pytest.mark.parametrize(
    "copied",
    [
        lambda message: message._replace(data="another"),
        lambda message: getattr(copy, "replace", Message._replace)(message, data="another"),
        copy.copy,
        copy.deepcopy,
        lambda message: pickle.loads(pickle.dumps(message)),
    ],
)
def test_a_copied_message_keeps_its_lane(communicators: Communicators, copied: Callable[[Message], Message]) -> None:
    server = communicators.server()
    client = communicators.client(server.netloc)
    client.put("data", lane=3)
    other = copied(server.get(timeout=LIMIT))
    assert (type(other), other.peer, other.lane) == (Message, client.id, 3)


@pytest.mark.parametrize("which", [0, 1])
def test_a_crash_of_a_loop_closes_the_communicator(communicators: Communicators, log: LogRecorder, which: int) -> None:
    server = communicators.server(workers=2)
    clients = [communicators.client(server.netloc, window=1) for _ in range(2)]
    introduce(server, *clients)
    server.put("fills them").result(LIMIT)
    pending = server.put("waits")
    server._endpoint.loops[which].call(crash)
    with pytest.raises(Closed, match="internal error: LookupError") as raised:
        server.get(timeout=LIMIT)
    assert isinstance(raised.value.__cause__, LookupError)
    for future in pending.futures:
        assert isinstance(future.exception(LIMIT), Closed)
    assert isinstance(server.put("after it", clients[0].id).exception(LIMIT), Closed)
    server.close(LIMIT)
    assert len(log.having("netq: internal error; the communicator is closed")) == 1
    communicators.release(server)


def test_a_crash_of_a_client_s_loop(communicators: Communicators, log: LogRecorder) -> None:
    client = communicators.client(communicators.unused_address())
    pending = client.put("waits")
    client._endpoint.home.call(crash)
    with pytest.raises(Closed, match="internal error: LookupError"):
        client.get(timeout=LIMIT)
    assert isinstance(pending.exception(LIMIT), Closed)
    assert isinstance(client.put("after it").exception(LIMIT), Closed)
    client.close(LIMIT)
    log.wait("netq: internal error; the communicator is closed")
    communicators.release(client)


@pytest.mark.parametrize("name", ["statistics", "get"])
def test_calls_that_wait_are_refused_in_a_loop(communicators: Communicators, name: str) -> None:
    server, client = communicators.pair(window=1)
    refused: Future[None] = Future()

    def call(_: object) -> None:
        try:
            getattr(client, name)()
        except RuntimeError as error:
            refused.set_exception(error)

    client.put("fills it").result(LIMIT)
    client.put("waits").add_done_callback(call)  # not done yet, so that a loop calls it
    assert [server.get(timeout=LIMIT).data for _ in range(2)] == ["fills it", "waits"]
    with pytest.raises(RuntimeError, match="by an event or a callback"):
        refused.result(LIMIT)


def test_a_peer_that_is_no_uuid_is_refused(communicators: Communicators) -> None:
    server, client = communicators.pair()
    with pytest.raises(TypeError, match=r"the peer .* is a str; expected a uuid\.UUID"):
        server.put("any", str(client.id))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_put_to_many_wakes_the_loop_once(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    with Communicators(functools.partial(netq.new, Protocol.TCP)) as communicators:
        _put_to_many(communicators, monkeypatch, size)


def _put_to_many(communicators: Communicators, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    server = communicators.server()
    clients = [communicators.client(server.netloc) for _ in range(20)]
    introduce(server, *clients)
    baton, own = server._baton, threading.get_ident()
    woken: list[str] = []
    deferred: list[Callable[..., object]] = []
    wake, defer = baton.wake, baton.defer

    def count_wake() -> None:
        if threading.get_ident() == own:
            woken.append("")
        wake()

    def count_deferred(function: Callable[..., object], *args: object) -> None:
        if isinstance(getattr(function, "__self__", None), Delivery):
            deferred.append(function)
        defer(function, *args)

    monkeypatch.setattr(baton, "wake", count_wake)
    monkeypatch.setattr(baton, "defer", count_deferred)
    future = server.put(bytes(size))
    assert (len(future.futures), len(woken) <= 1) == (20, True)
    assert [len(client.get(timeout=LIMIT).data) for client in clients] == [size] * 20
    future.result(LIMIT)
    assert len(deferred) < 10, "no change of threads for each ACK"


def test_close_in_a_callback_of_a_future_is_refused(communicators: Communicators) -> None:
    server, client = communicators.pair(window=1)
    refused: Future[None] = Future()

    def close(_: object) -> None:
        try:
            client.close()
        except RuntimeError as error:
            refused.set_exception(error)

    client.put("fills it").result(LIMIT)
    client.put("waits").add_done_callback(close)
    assert [server.get(timeout=LIMIT).data for _ in range(2)] == ["fills it", "waits"]
    with pytest.raises(RuntimeError, match="by an event or a callback"):
        refused.result(LIMIT)


def test_a_port_of_this_process_is_given_once(communicators: Communicators) -> None:
    server = communicators.server()
    with pytest.raises(AddressError, match=f"127.0.0.1:{server.netloc.port}.*taken in this process"):
        loopback.Server(CommunicatorOptions(netloc=server.netloc, workers=2))
    assert communicators.server().netloc.port != server.netloc.port


def test_a_transport_that_cannot_be_made_leaves_nothing_behind() -> None:
    """The fixture sees threads and descriptors."""

    def transport(*args: object) -> loopback.ClientTransport:
        raise LookupError

    with pytest.raises(LookupError):
        Communicator(CommunicatorOptions(netloc=NetworkLocation(), workers=2), Purpose.CLIENT, transport)


def test_a_refusal_reaches_the_peer_and_is_logged_once(communicators: Communicators, log: LogRecorder) -> None:
    server = communicators.server()
    client = communicators.client(server.netloc, id=server.id, linger=0.0)
    client.put("never")
    line = log.wait("the peer refuses")
    assert f"the id {server.id} is the server's own" in line
    assert len(log.having("trying again")) == 1
    client.close(LIMIT)
    communicators.release(client)


@pytest.mark.parametrize("timeout", ["1", float("nan"), [1]])
def test_a_timeout_that_is_no_number_is_refused(communicators: Communicators, timeout: object) -> None:
    client = communicators.client(communicators.unused_address())
    for call in (client.get, client.close):
        with pytest.raises(TypeError, match=rf"{call.__name__}: timeout=.*; expected seconds, or None"):
            call(timeout=timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 10**400, -math.inf])
def test_a_timeout_may_have_any_size(communicators: Communicators, timeout: float) -> None:
    server, client = communicators.pair()
    client.put("here").result(timeout if timeout > 0 else LIMIT)
    if timeout > 0:
        assert server.get(timeout=timeout).data == "here"
    else:
        server.get(timeout=LIMIT)
        with pytest.raises(TimeoutError):
            server.get(timeout=timeout)


def test_after_a_close_of_its_own_a_get_does_not_blame_the_peer(communicators: Communicators) -> None:
    _, client = communicators.pair()
    client.close(LIMIT)
    with pytest.raises(Closed, match="this communicator is closed") as closed:
        client.get(timeout=LIMIT)
    assert closed.value.peer == client.id


def test_an_interrupted_link_is_replaced_after_the_shortest_pause() -> None:
    once = ConnectionOptions(retry_min=1e6, retry_max=1e6)
    client = loopback.Client(CommunicatorOptions(netloc=NetworkLocation("127.0.0.1", 1), connection=once))
    try:
        endpoint = client._endpoint
        while not endpoint.home.ask(lambda: endpoint.reconnector.attempt):
            pass  # its own attempt has not failed yet
        for _ in range(5):
            endpoint.home.ask(endpoint._retry, Interrupted("a handler has raised"))
        assert endpoint.reconnector.attempt == 1
        for _ in range(5):
            endpoint.home.ask(endpoint._retry, ConnectionResetError("the network"))
        assert endpoint.reconnector.attempt == 6
    finally:
        client.close(0)


DATA = PickleSerializer(allow=PickleSerializer.allow_by_name("uuid.UUID"))
LOADS = {"default": None, "hooks": PickleSerializer(load=int).load, "allow": DATA.load, "bytes": BytesSerializer().load}


@pytest.mark.parametrize(
    ("host", "load", "warned"),
    [
        *(("0.0.0.0", "default", True), ("0.0.0.0", "hooks", True), ("::", "default", True)),
        *(("0.0.0.0", "allow", False), ("0.0.0.0", "bytes", False)),
        *(("127.0.0.1", "default", False), ("127.0.0.2", "default", False), ("::1", "default", False)),
        ("localhost", "default", False),
    ],
)
@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.GRPC])
def test_an_open_server_that_loads_any_pickle_warns_once(
    log: LogRecorder, protocol: Protocol, host: str, load: str, warned: bool
) -> None:
    chosen = LOADS[load]
    serialization = SerializationOptions() if chosen is None else SerializationOptions(load=chosen)
    options = CommunicatorOptions(netloc=NetworkLocation(host, 0), serialization=serialization)
    with netq.new(protocol, Purpose.SERVER, options):
        pass
    warnings = log.having("can run code here", logging.WARNING)
    assert len(warnings) == warned
    assert all(warning.startswith(f"{host}:") and "PickleSerializer(allow=" in warning for warning in warnings)


def test_a_client_does_not_warn(log: LogRecorder) -> None:
    options = CommunicatorOptions(netloc=NetworkLocation("192.0.2.1", 1))
    netq.new(Protocol.TCP, Purpose.CLIENT, options).close(0)
    assert not log.having("can run code")
