"""What the fault tests share: the wire under test, proxies, and a figure for the table at the end of the run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from netq import NetworkLocation
from netq.mqtt.topic import new_id
from netq.security import certificates
from netq.testing.fixtures import Communicators
from netq.testing.proxy import Proxy
from tests.faults.wires import BROKERED, SOCKETS, Wire
from tests.servers.mosquitto import Mosquitto

Figure = Callable[[str, str], None]
NewWire = Callable[[str], Wire]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.faults.plugin")


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def brokers(
    tmp_path_factory: pytest.TempPathFactory, files: certificates.Files
) -> Iterator[dict[str, NetworkLocation]]:
    """Where the broker is, plain and under TLS; nowhere if there is no mosquitto."""
    with ExitStack() as stack:
        found: dict[str, NetworkLocation] = {}
        with contextlib.suppress(pytest.skip.Exception):  # the other wires need none
            for kind, pem in zip(BROKERED, ((None, None), (files.certificate, files.key)), strict=True):
                broker = Mosquitto(tmp_path_factory.mktemp("broker"), certificate=pem[0], key=pem[1])
                found[kind] = stack.enter_context(broker).netloc
        yield found


@pytest.fixture
def new_wire(files: certificates.Files, brokers: dict[str, NetworkLocation]) -> NewWire:
    def new_wire(kind: str) -> Wire:
        if kind not in BROKERED:
            return Wire(kind, files)
        if kind not in brokers:
            pytest.skip("no mosquitto here; `apt install mosquitto` brings it")
        return Wire(kind, files, brokers[kind], f"faults/{new_id()}")

    return new_wire


@pytest.fixture
def wires(request: pytest.FixtureRequest, new_wire: NewWire) -> dict[str, Wire]:
    """Several, for a test that takes long and tries them at the same time."""
    return {kind: new_wire(kind) for kind in getattr(request, "param", SOCKETS)}


@pytest.fixture(params=SOCKETS)
def wire(request: pytest.FixtureRequest, new_wire: NewWire) -> Wire:
    return new_wire(request.param)


@pytest.fixture
def proxies() -> Iterator[Callable[[NetworkLocation], Proxy]]:
    with ExitStack() as stack:
        yield lambda upstream: stack.enter_context(Proxy(upstream))


@pytest.fixture
def communicators(wire: Wire, proxies: Callable[[NetworkLocation], Proxy]) -> Iterator[Communicators]:
    with Communicators(wire.make) as communicators:
        yield communicators


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Put a line into the table that ends the run: a case of docs/explanation/reliability.md, and what was measured.

    It travels with the report of the test, which may be of another process; the plugin prints it.
    """

    def add(case: str, text: str) -> None:
        request.node.user_properties.append(("figure", (case, text)))

    return add
