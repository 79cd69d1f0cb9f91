"""Fixtures of the fault tests: the wire under test, and figures for the table at the end of the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from netq import NetworkLocation
from netq.testing.fixtures import Communicators
from netq.testing.proxy import Proxy
from tests.wires import SOCKETS, NewWire, Wire

Figure = Callable[[str, str], None]
FULL = os.environ.get("NETQ_FAULTS") == "full"  # `make faults`: the sizes of docs/explanation/reliability.md


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.faults.plugin")


@pytest.fixture
def wires(request: pytest.FixtureRequest, new_wire: NewWire) -> dict[str, Wire]:
    """Several wires, for a slow test that uses them at the same time."""
    return {kind: new_wire(kind) for kind in getattr(request, "param", SOCKETS)}


@pytest.fixture(params=SOCKETS)
def wire(request: pytest.FixtureRequest, new_wire: NewWire) -> Wire:
    return new_wire(request.param)


@pytest.fixture
def communicators(wire: Wire, proxies: Callable[[NetworkLocation], Proxy]) -> Iterator[Communicators]:
    with Communicators(wire.make) as communicators:
        yield communicators


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Add a line to the table at the end of the run: a case of docs/explanation/reliability.md, and the measurement.

    It travels with the report of the test, which may be of another process; the plugin prints it.
    """

    def add(case: str, text: str) -> None:
        request.node.user_properties.append(("figure", (case, text)))

    return add
