"""`netq.poll`: which of several communicators have a message."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import netq
from netq.core import Communicator
from netq.options import Protocol
from netq.testing import loopback
from netq.testing.fixtures import LIMIT, Communicators, Make, introduce
from tests.netq.makers import at_path, in_process, plain


@pytest.fixture(params=["loopback", "tcp", "shm"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    return {"loopback": in_process, "tcp": plain(Protocol.TCP), "shm": at_path(tmp_path)}[request.param]


def test_poll_returns_those_with_a_message(make: Make) -> None:
    with Communicators(make) as communicators:
        pairs = [communicators.pair() for _ in range(3)]
        servers = [server for server, _ in pairs]
        assert netq.poll(servers, timeout=0) == []
        pairs[1][1].put("one").result(LIMIT)
        assert netq.poll(servers, timeout=LIMIT) == [servers[1]]
        assert netq.poll(servers, timeout=0) == [servers[1]], "poll takes nothing"
        pairs[2][1].put("two").result(LIMIT)
        assert netq.poll(iter(servers), timeout=0) == servers[1:]
        assert [server.get(timeout=0).data for server in servers[1:]] == ["one", "two"]
        assert netq.poll(servers, timeout=0.01) == []


def test_poll_waits_for_messages(make: Make) -> None:
    with Communicators(make) as communicators, ThreadPoolExecutor(1) as thread:
        pairs = [communicators.pair() for _ in range(2)]
        servers = [server for server, _ in pairs]
        for number in range(20):
            waiting = thread.submit(netq.poll, servers, LIMIT)
            pairs[number % 2][1].put(number)
            assert waiting.result(LIMIT) == [servers[number % 2]]
            assert servers[number % 2].get(timeout=0).data == number


def test_poll_works_across_transports(tmp_path: Path) -> None:
    with Communicators(in_process) as ones, Communicators(plain(Protocol.TCP)) as others:
        (one, one_client), (other, other_client) = ones.pair(), others.pair()
        one_client.put("a").result(LIMIT)
        other_client.put("b").result(LIMIT)
        assert netq.poll([other, one, other], LIMIT) == [other, one]
        assert (one.get(timeout=0).data, other.get(timeout=0).data) == ("a", "b")


def test_poll_returns_closed_communicators() -> None:
    with Communicators(in_process) as communicators:
        server, client = communicators.pair()
        with loopback.Client(netq.CommunicatorOptions(netloc=server.netloc)) as closed:
            pass
        assert netq.poll([client, closed], LIMIT) == [closed]
        with pytest.raises(netq.Closed):
            closed.get()


def test_poll_keeps_order_and_turns_of_peers() -> None:
    with Communicators(in_process) as communicators:
        server = communicators.server()
        clients = [communicators.client(server.netloc) for _ in range(2)]
        introduce(server, *clients)
        for client in clients:
            for number in range(3):
                client.put(number).result(LIMIT)
        got = []
        for _ in range(6):
            assert netq.poll([server], timeout=0) == [server]
            got.append(server.get(timeout=0))
        assert [number for _, number in got] == [0, 0, 1, 1, 2, 2], "the peers are served in turn"
        assert {peer for peer, _ in got[:2]} == {client.id for client in clients}


def test_message_returns_to_other_threads_after_poll() -> None:
    with Communicators(in_process) as communicators, ThreadPoolExecutor(1) as thread:
        (server, client), (other, other_client) = communicators.pair(), communicators.pair()
        waiting = thread.submit(netq.poll, [server, other], LIMIT)
        getting = thread.submit(server.get, timeout=LIMIT)
        other_client.put("for the other").result(LIMIT)
        assert waiting.result(LIMIT) == [other]
        client.put("for the thread").result(LIMIT)
        assert getting.result(LIMIT).data == "for the thread"
        assert other.get(timeout=0).data == "for the other"


@pytest.mark.parametrize(
    ("communicators", "expected"),
    [
        ([], r"poll: \[\]; expected one or more communicators, as netq.new returns them, in a list"),
        (["queue"], "poll: 'queue'; expected one or more communicators"),
        (7, "poll: 7; expected one or more communicators"),
    ],
)
def test_poll_refuses_what_it_cannot_wait_for(communicators: Any, expected: str) -> None:
    with pytest.raises(netq.InvalidOption, match=expected):
        netq.poll(communicators)


def test_poll_refuses_wrong_timeout() -> None:
    with (
        Communicators(in_process) as communicators,
        pytest.raises(TypeError, match="poll: timeout='soon'; expected seconds"),
    ):
        netq.poll([communicators.server()], "soon")  # type: ignore[arg-type]


def test_poll_in_an_event_is_refused() -> None:
    errors: list[RuntimeError] = []
    told = threading.Event()

    def begin(peer: uuid.UUID) -> None:
        try:
            netq.poll([server])
        except RuntimeError as error:
            errors.append(error)
        told.set()

    server: Communicator = loopback.Server(netq.CommunicatorOptions(events=netq.EventOptions(ini=begin)))
    with server, loopback.Client(netq.CommunicatorOptions(netloc=server.netloc)) as client:
        client.put("hello")
        assert told.wait(LIMIT)
    assert "poll() waits for a loop" in str(errors[0])
