"""The server: clients one after another, killed clients, requests that are too large or wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import netq
from netq import NetworkLocation
from netq.__main__ import main
from netq.bench import plan, protocol, service, spawn, streaming
from netq.bench.resources import facts
from netq.testing.fixtures import LIMIT, Communicators
from netq.testing.log import LogRecorder
from netq.testing.proxy import Proxy
from tests.netq.bench.conftest import Run, Start

MIB, NOW = 2**20, protocol.VERSION
Proxies = Callable[[NetworkLocation], Proxy]


@pytest.fixture
def communicators() -> Iterator[Communicators]:
    with Communicators(lambda purpose, options: netq.new(netq.Protocol.TCP, purpose, options)) as communicators:
        yield communicators


@contextmanager
def serving(*, once: bool = False) -> Iterator[netq.Communicator]:
    """A bench server in this process, which takes messages of 1 MiB; with `once` it ends by itself."""
    arrivals = service.Arrivals()
    here = NetworkLocation("127.0.0.1", 0)
    options = netq.CommunicatorOptions(
        netloc=here,
        serialization=protocol.serialization(),
        connection=netq.ConnectionOptions(linger=0.1),  # for a client that was killed
    )
    with service.open_server(options, netq.Protocol.TCP, arrivals) as server:
        thread = threading.Thread(target=service.serve, args=(server, arrivals, MIB), kwargs={"once": once})
        thread.start()
        try:
            yield server
        finally:
            if not once:
                arrivals.put(None)
            thread.join(LIMIT)
            assert not thread.is_alive()


def received(client: netq.Communicator) -> Any:
    return client.get(timeout=LIMIT).data


def leave(communicators: Communicators, client: netq.Communicator) -> None:
    """Close a client politely, so that the server knows that it is gone."""
    communicators.release(client)
    assert client.close(LIMIT) == 0


def test_second_client_is_served_after_the_first(run: Run, netloc: str) -> None:
    for _ in range(2):
        assert run("latency", "--count", "10", "--netloc", netloc)["figures"]["messages"] == 10


def test_client_is_served_while_another_is(
    run: Run, netloc: str, location: NetworkLocation, communicators: Communicators
) -> None:
    first = communicators.client(location)
    assert received(first)[0] == "hello"
    first.put(("echo", 64))
    assert received(first) == ("ready",)
    assert run("latency", "--count", "10", "--netloc", netloc)["figures"]["messages"] == 10
    first.put(b"abc")
    assert received(first) == b"abc"
    first.put(("end",))
    assert received(first)[:3] == ("done", 1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["up", "down"])
def test_client_is_served_after_a_killed_one(run: Run, start: Start, direction: str) -> None:
    with serving() as server:
        netloc = "{}:{}".format(*server.netloc)
        arguments = ("--size", "1KiB", "--count", "50000000", "--direction", direction, "--netloc", netloc)
        killed = start("throughput", *arguments)
        while not any(figures.messages_in + figures.messages_out > 100 for figures in server.statistics().values()):
            assert killed.poll() is None
        killed.kill()
        killed.wait()
        assert run("latency", "--count", "10", "--netloc", netloc)["figures"]["messages"] == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", ["latency --count 50000000", "throughput --size 1KiB --count 50000000 --direction down"]
)
def test_lost_server_is_one_line_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], proxies: Proxies, arguments: str
) -> None:
    monkeypatch.setattr(spawn, "SESSION_TIMEOUT", 0.3)
    with serving() as server, ThreadPoolExecutor() as pool:
        proxy = proxies(server.netloc)
        client = pool.submit(main, ["bench", *arguments.split(), "--netloc", "{}:{}".format(*proxy.netloc)])
        proxy.wait(100_000, LIMIT)
        proxy.close()
        assert client.result(LIMIT) == 1
    assert "error: the server at {}:{}: no link for 0.3 s".format(*proxy.netloc) in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["latency", "load --rate 100"])
def test_too_large_echo_is_refused(capsys: pytest.CaptureFixture[str], netloc: str, arguments: str) -> None:
    assert main(["bench", *arguments.split(), "--size", "2MiB", "--netloc", netloc]) == 1
    _, errors = capsys.readouterr()
    assert errors.count("\n") == 1
    assert "the server refuses: messages of 2MiB; it takes 1MiB at most: start it with a larger --max-message" in errors


@pytest.mark.parametrize(
    "arguments",
    ["latency", "load --rate 100", "throughput", "throughput --direction both", "iops tcp client sync --max-size 21"],
)
def test_refused_client_allocates_no_messages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], netloc: str, arguments: str
) -> None:
    def make(size: int) -> memoryview:
        raise AssertionError("it was made before the server had agreed")

    monkeypatch.setattr(streaming, "_noise", make)
    size = () if "iops" in arguments else ("--size", "2MiB")
    assert main(["bench", *arguments.split(), *size, "--netloc", netloc]) == 1
    assert "the server refuses: messages of 2MiB" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "needed"), [("latency", "64.0KiB"), ("throughput --direction both", "128.0KiB")])
def test_server_refuses_messages_beyond_its_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, needed: str
) -> None:
    monkeypatch.setattr(protocol, "free_memory", lambda: 60_000)
    with serving() as server:
        netloc = "{}:{}".format(*server.netloc)
        assert main(["bench", *arguments.split(), "--size", "64KiB", "--netloc", netloc]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"the server refuses: messages of 64KiB need {needed} of its machine's memory, of which 58.6KiB are" in line
    assert line.endswith("ask for smaller messages (--size; of iops and sweep --max-size)")


def test_too_large_message_is_refused(capsys: pytest.CaptureFixture[str], netloc: str) -> None:
    assert main(["bench", "throughput", "--size", "2MiB", "--direction", "down", "--netloc", netloc]) == 1
    _, errors = capsys.readouterr()
    assert errors.count("\n") == 1
    assert "the server refuses: messages of 2MiB; it takes 1MiB at most: start it with a larger --max-message" in errors


@pytest.mark.parametrize(
    "request_",
    [
        ("transfer", "down", ((MIB + 1, 1),), 0),
        ("transfer", "down", ((1, plan.MOST_MESSAGES + 1),), 0),
        ("transfer", "down", ((1, 10**6000),), 0),
        ("transfer", "down", ((10**6000, 1),), 0),
        ("transfer", "down", ((1, 1),) * 1000, 0),
        ("transfer", "down", ((-1, 1),), 0),
        ("transfer", "down", (), 0),
        ("transfer", "sideways", ((1, 1),), 0),
        ("transfer", "down", "ab", 0),
        ("transfer", "down", ((1, 1, 1),), 0),
        ("transfer", "down", ((1.5, 1),), 0),
        ("transfer", "down", ((1, 1),)),
        ("transfer", "down", ((1, 1),), 0.5),
        ("transfer",),
        ("go",),
        (),
        b"no tuple",
        None,
        [10**6000],
    ],
    ids=lambda request_: repr(type(request_)),
)
def test_wrong_request_is_answered_then_client_ignored(
    netloc: str, location: NetworkLocation, communicators: Communicators, request_: object
) -> None:
    client = communicators.client(location)
    assert received(client)[0] == "hello"
    client.put(request_)
    kind, why = received(client)
    assert kind == "refused"
    assert 0 < len(why) < 500


class Harm:
    """What a pickle could do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("harm"),)


def test_no_class_is_loaded(location: NetworkLocation, communicators: Communicators) -> None:
    client = communicators.client(location)
    assert received(client)[0] == "hello"
    client.put(Harm())
    kind, why = received(client)
    assert kind == "refused"
    assert "allow" in why
    assert not Path("harm").exists()


def test_wrong_payloads_of_echoes_cost_no_place(location: NetworkLocation, communicators: Communicators) -> None:
    for _ in range(service.CLIENTS + 1):
        client = communicators.client(location)
        assert received(client)[0] == "hello"
        client.put(("echo", 8))
        assert received(client) == ("ready",)
        client.put([1])
        assert received(client)[0] == "refused"
        communicators.release(client)
        client.close(LIMIT)


def test_wrong_payload_ends_a_transfer(location: NetworkLocation, communicators: Communicators) -> None:
    client = communicators.client(location)
    assert received(client)[0] == "hello"
    client.put(("transfer", "up", ((8, 2),), 0))
    assert received(client) == ("ready",)
    client.put(("go",))
    client.put({"a": 1})
    assert received(client)[0] == "refused"


def test_clients_beyond_the_limit_are_refused(communicators: Communicators) -> None:
    with serving() as server:
        for _ in range(service.CLIENTS):
            assert received(communicators.client(server.netloc))[0] == "hello"
        last = communicators.client(server.netloc)
        assert received(last) == ("refused", f"it serves {service.CLIENTS} clients already")
        for client in list(communicators._open):
            communicators.abort(client)


def test_server_of_one_client_ends_after_it_has_left(communicators: Communicators) -> None:
    with serving(once=True) as server:
        for _ in range(3):  # of whom none is served
            refused = communicators.client(server.netloc)
            assert received(refused)[0] == "hello"
            refused.put("nonsense")
            assert received(refused)[0] == "refused"
            leave(communicators, refused)
        first = communicators.client(server.netloc)
        assert received(first)[0] == "hello"
        first.put(("echo", 8))
        assert received(first) == ("ready",)
        first.put(("end",))
        assert received(first)[0] == "done"
        second = communicators.client(server.netloc)
        assert received(second) == ("refused", "it serves one client, and has one")
        leave(communicators, first)
        communicators.abort(second)


def test_server_log_names_the_refused_client(communicators: Communicators) -> None:
    with LogRecorder() as log, ExitStack() as stack:
        client = communicators.client(stack.enter_context(serving()).netloc)
        assert received(client)[0] == "hello"
        client.put(b"")
        line = log.wait("is not served any more")
        assert line.startswith("127.0.0.1:")
        assert str(client.id) not in line
        communicators.abort(client)


def test_restarted_server_is_detected() -> None:
    hello = netq.Message(netq.CommunicatorOptions().id, ("hello", protocol.VERSION, {}))
    with pytest.raises(protocol.Unexpected, match='"hello", which was not due: was it started anew'):
        protocol.expect(lambda: hello, "done")


@pytest.mark.parametrize("hello", [(1, facts()), (), (NOW,), (NOW, []), (NOW, {"python": "3"})])
def test_wrong_hello_is_refused(hello: tuple[Any, ...]) -> None:
    with pytest.raises(protocol.BenchError):
        protocol.read_hello(hello)
