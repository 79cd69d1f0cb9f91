"""One broker for the session, plain and under TLS; a prefix of its own for each test."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import netq
from netq import CommunicatorOptions, MqttOptions, NetworkLocation, Protocol, Purpose, SecurityOptions
from netq.core import Communicator
from netq.mqtt.topic import new_id
from netq.security import certificates
from netq.testing.proxy import Proxy
from netq.testing.stage import Make, Stage
from tests.servers.mosquitto import Mosquitto

NewBroker = Callable[..., Mosquitto]


def maker(netloc: NetworkLocation, security: SecurityOptions | None = None, **mqtt: object) -> Make:
    """Return what makes communicators that meet at a broker, under a prefix that nobody else has."""
    ours = MqttOptions(**{"prefix": f"test/{new_id()}"} | mqtt)  # type: ignore[arg-type]

    def make(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
        where = options.netloc if options.netloc.port else netloc
        told = dataclasses.replace(options, netloc=where, mqtt=ours, security=security)
        return netq.new(Protocol.MQTT, purpose, told)

    return make


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="session")
def tls_broker(tmp_path_factory: pytest.TempPathFactory, files: certificates.Files) -> Iterator[Mosquitto]:
    folder = tmp_path_factory.mktemp("tls")
    with Mosquitto(folder, certificate=files.certificate, key=files.key) as broker:
        yield broker


@pytest.fixture
def new_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewBroker]:
    """Start brokers that the test may kill."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Mosquitto(tmp_path_factory.mktemp("own"), **options))


@pytest.fixture
def stage(broker: Mosquitto) -> Iterator[Stage]:
    with Stage(maker(broker.netloc)) as stage:
        yield stage


@pytest.fixture
def proxies() -> Iterator[Callable[[NetworkLocation], Proxy]]:
    with ExitStack() as stack:
        yield lambda upstream: stack.enter_context(Proxy(upstream))
