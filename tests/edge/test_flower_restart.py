"""A device with a Flower app, and a server whose messages the test sends: restarts, and what a grid cannot show."""

from __future__ import annotations

import importlib
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import netq
from fl.envelope import Leave, values
from fl.flower.envelope import RAISED, UNAVAILABLE, Failure
from tests.edge.flower_devices import SOON, Device, install

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # click's, of what typer does
    flwr: Any = pytest.importorskip("flwr.app", reason="no flwr here: pip install 'flwr>=1.39,<2'")
    messages: Any = importlib.import_module("fl.flower.messages")

RUN = 7


class Server:
    """In place of a grid."""

    def __init__(self) -> None:
        self._sessions: SimpleQueue[uuid.UUID] = SimpleQueue()
        options = netq.CommunicatorOptions(
            netloc=netq.NetworkLocation("127.0.0.1", 0),
            serialization=messages.MESSAGES,
            connection=netq.ConnectionOptions(takeover_grace=0.1),
            events=netq.EventOptions(ini=self._sessions.put),
        )
        self.queue = netq.new(purpose=netq.Purpose.SERVER, options=options)

    def connected(self) -> None:
        """Wait for the next session of a device."""
        self._device = self._sessions.get(timeout=SOON)

    def ask(self, batch: int, run: int = RUN) -> Any:
        """Ask for a count, and return the answer."""
        return self.send(counting(batch, run))

    def send(self, plain: Any) -> Any:
        self.queue.put(plain, self._device)
        return messages.read(self.queue.get(timeout=SOON).data)


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.queue.close(0)


@pytest.fixture
def device(tmp_path: Path, server: Server) -> Device:
    install(tmp_path)
    return Device(tmp_path, server.queue.netloc.port, 'state = "state"\n')


def counting(batch: int, run: int = RUN) -> Any:
    return messages.Ask(batch, run, {}, "query.count", "", 0.0, 60.0, "", flwr.RecordDict())


def count_of(reply: Any) -> Any:
    return reply.content["m"]["n"]


@pytest.mark.slow
def test_stored_reply_answers_the_message_after_a_kill(server: Server, device: Device) -> None:
    with device.running():
        server.connected()
        first = server.ask(1)
    with device.running():
        server.connected()
        again, second = server.ask(1), server.ask(2)
    assert again == first  # with the id of the process, and what it has used
    assert [count_of(reply) for reply in (first, second)] == [1, 2]


@pytest.mark.slow
def test_stored_state_is_not_that_of_another_run(server: Server, device: Device) -> None:
    with device.running():
        server.connected()
        assert [count_of(server.ask(batch)) for batch in (1, 2)] == [1, 2]
    with device.running():
        server.connected()
        assert count_of(server.ask(2, run=RUN + 1)) == 1


@pytest.mark.slow
def test_unreadable_messages_are_answered(server: Server, device: Device) -> None:
    with device.running():
        server.connected()
        reason = "the message cannot be read: the record 'm', 'x': expected one of int, float, or a list of one"
        ask = {**values(counting(1)), "content": [("m", "metrics", [("x", "y")])]}
        assert server.send(ask) == Failure(1, reason, RAISED)
        failure = server.send({"type": "hello"})
        assert (failure.batch, failure.code) == (None, UNAVAILABLE)
        assert count_of(server.ask(2)) == 1


@pytest.mark.slow
def test_device_leaves_before_a_message_would_exceed_its_traffic(tmp_path: Path, server: Server) -> None:
    install(tmp_path)
    with Device(tmp_path, server.queue.netloc.port, "[fit]\nmax_traffic = 0.005\n").running():
        server.connected()
        rounds = 0
        while not isinstance(answer := server.ask(rounds), Leave):
            assert answer.batch == rounds
            rounds += 1
    assert answer.reason.endswith(" MB in 60 minutes; fit.max_traffic is 0.005")
    assert rounds > 1
