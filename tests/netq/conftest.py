"""Brokers for a whole session of tests: plain, and under TLS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from netq.security import certificates
from tests.servers.mosquitto import Mosquitto


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="session")
def tls_broker(tmp_path_factory: pytest.TempPathFactory, files: certificates.Files) -> Iterator[Mosquitto]:
    folder = tmp_path_factory.mktemp("tls")
    with Mosquitto(folder, certificate=files.certificate, key=files.key) as broker:
        yield broker
