"""A client ends with its own federation: another server that closes does not end it, a resumed server of it does."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fl
import netq
from fl.envelope import End
from fl.properties import Properties
from netq.mqtt.topic import new_id
from netq.testing.log import LogRecorder
from tests.fl.federation import QUICK, SOON, A, gives, zeros
from tests.servers.mosquitto import Mosquitto

FOREIGN = "ends another federation than this client's"
LOCAL = netq.NetworkLocation("127.0.0.1", 0)
HASTY = replace(QUICK, takeover_grace=0.1)


PROPERTIES: Properties = {"region": "eu"}


class Site:
    """One address, the servers that follow one another there, and a client that connects to it."""

    def __init__(self, options: netq.CommunicatorOptions, protocol: netq.Protocol) -> None:
        self.options = options
        self.protocol = protocol
        self._pool = ThreadPoolExecutor(1)

    def server(self, **settings: Any) -> fl.Server:
        options = replace(self.options, id=uuid.uuid4())
        server = fl.Server(
            zeros(), options, protocol=self.protocol, min_clients=1, patience=fl.Patience(deadline=3 * SOON), **settings
        )
        self.options = replace(self.options, netloc=server.netloc)
        return server

    def resumed(self, path: Path) -> fl.Server:
        options = replace(self.options, id=uuid.uuid4())
        return fl.Server.resume(
            path, options, protocol=self.protocol, min_clients=1, patience=fl.Patience(deadline=3 * SOON)
        )

    def client(self, **options: Any) -> Future[Any]:
        return self._pool.submit(
            fl.Client(gives(2), properties=PROPERTIES).run, replace(self.options, id=A, **options), self.protocol
        )

    def close(self) -> None:
        self._pool.shutdown()


@pytest.fixture(params=[protocol.value for protocol in netq.Protocol])
def site(request: pytest.FixtureRequest, broker: Mosquitto) -> Iterator[Site]:
    protocol = netq.Protocol(request.param)
    options = netq.CommunicatorOptions(netloc=LOCAL, connection=HASTY)
    if protocol is netq.Protocol.MQTT:
        options = replace(options, netloc=broker.netloc, mqtt=netq.MqttOptions(f"test/{new_id()}"))
    site = Site(options, protocol)
    yield site
    site.close()


@pytest.mark.slow
def test_a_server_without_our_federation_does_not_end_us(site: Site, log: LogRecorder) -> None:
    first = site.server()
    running = site.client()
    first.wait(1, SOON)
    first.close(0.0)
    second = site.server()
    second.wait(1, SOON)
    second.close(SOON)
    log.wait(FOREIGN)
    third = site.server()
    assert third.round().clients == (A,)
    assert not running.done()
    third.close(SOON)
    running.result(SOON)


@pytest.mark.slow
def test_a_resumed_server_ends_us_without_a_task(site: Site, tmp_path: Path) -> None:
    first = site.server(checkpoint=tmp_path / "c")
    running = site.client()
    assert first.round().clients == (A,)
    first.close(0.0)
    second = site.resumed(tmp_path / "c")
    assert second.number == 1
    assert second.wait(1, SOON) == (A,)
    assert second._members.properties == {A: PROPERTIES}  # it has introduced itself again
    assert not running.done()
    second.close(SOON)
    assert running.result(SOON)["w"].tolist() == second.model["w"].tolist()


@pytest.mark.slow
def test_second_server_on_a_prefix_leaves_the_first_its_clients(broker: Mosquitto, log: LogRecorder) -> None:
    options = netq.CommunicatorOptions(
        netloc=broker.netloc, connection=HASTY, mqtt=netq.MqttOptions(f"test/{new_id()}")
    )
    site = Site(options, netq.Protocol.MQTT)
    with site.server() as first:
        running = site.client()
        assert first.round().clients == (A,)
        second = site.server()
        second.wait(1, SOON)
        second.close(SOON)
        log.wait(FOREIGN)
        assert first.round().clients == (A,)
        assert not running.done()
    running.result(SOON)
    site.close()


@pytest.mark.slow
def test_a_task_of_another_server_joins_its_federation(log: LogRecorder) -> None:
    site = Site(netq.CommunicatorOptions(netloc=LOCAL, connection=HASTY), netq.Protocol.TCP)
    first = site.server()
    running = site.client()
    assert first.round().clients == (A,)
    first.close(0.0)
    with site.server() as second:
        assert second.round().clients == (A,)
    running.result(SOON)
    assert not log.having(FOREIGN)
    site.close()


@pytest.mark.slow
def test_a_session_that_ends_without_the_federation_is_begun_anew(log: LogRecorder) -> None:
    """As by the end of a server process that has not closed its federation."""
    site = Site(netq.CommunicatorOptions(netloc=LOCAL, connection=HASTY), netq.Protocol.TCP)
    first = site.server()
    running = site.client()
    first.wait(1, SOON)
    first._members.queue.close(SOON)
    first.close(0.0)
    log.wait("the session is over, the federation is not")
    with site.server() as second:
        assert second.round().clients == (A,)
    running.result(SOON)
    site.close()


def test_the_end_passes_a_client_that_trains() -> None:
    """Its run returns when its function has."""
    begun, go_on = threading.Event(), threading.Event()

    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        begun.set()
        assert go_on.wait(SOON)
        return fl.Update(model, 1)

    with ThreadPoolExecutor(2) as pool, fl.Server(zeros(), netq.CommunicatorOptions(netloc=LOCAL), min_clients=1) as s:
        running = pool.submit(fl.Client(train).run, netq.CommunicatorOptions(netloc=s.netloc))
        round = pool.submit(s.round)
        assert begun.wait(SOON)
        s.close(0.2)
        go_on.set()
        running.result(SOON)
        assert isinstance(round.exception(SOON), netq.Closed)


@pytest.mark.parametrize(("memory", "queue_bytes"), [(1000, 1000), (2**30, 2**28)])
def test_what_waits_for_the_server_is_bounded(monkeypatch: pytest.MonkeyPatch, memory: int, queue_bytes: int) -> None:
    made: list[netq.ConnectionOptions] = []

    def new(protocol: netq.Protocol, purpose: netq.Purpose, options: netq.CommunicatorOptions) -> None:
        made.append(options.connection)
        raise InterruptedError

    monkeypatch.setattr(netq, "new", new)
    options = netq.CommunicatorOptions(connection=netq.ConnectionOptions(memory=memory))
    with pytest.raises(InterruptedError):
        fl.Client(lambda model, config: fl.Update(model, 1)).run(options)
    assert [(each.queue_bytes, each.queue_size) for each in made] == [(queue_bytes, 10_000)]


def test_the_users_events_are_called() -> None:
    began: list[uuid.UUID] = []
    ended: list[uuid.UUID] = []
    site = Site(netq.CommunicatorOptions(netloc=LOCAL, connection=HASTY), netq.Protocol.TCP)
    with site.server() as server:
        running = site.client(events=netq.EventOptions(began.append, ended.append))
        server.wait(1, SOON)
    running.result(SOON)
    site.close()
    assert len(began) == 1
    assert began == ended


@pytest.mark.parametrize("round", [-1, 2**63, 1.0, True, None, "1"])
def test_an_end_has_a_number_of_a_round(round: Any) -> None:
    with pytest.raises(fl.InvalidUpdate, match=r"round.*expected a whole number below 2\*\*63"):
        End(round)
