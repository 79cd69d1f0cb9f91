"""Brokers for a whole session of tests, plain and under TLS; and the two codecs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from netq.protocol import codec
from netq.security import certificates
from tests.netq.codecs import use_python
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


@pytest.fixture
def python_codec() -> Iterator[None]:
    """Use the functions of netq/protocol/codec.py, not the compiled ones."""
    with use_python():
        yield


@pytest.fixture(params=["python", "compiled"])
def each_codec(request: pytest.FixtureRequest) -> None:
    """Use one codec, then the other."""
    if request.param == "python":
        request.getfixturevalue("python_codec")
    elif codec.take.__module__ != "netq.protocol._codec":
        pytest.skip("the compiled codec is not in use: NETQ_PURE is set, or it is not built")
