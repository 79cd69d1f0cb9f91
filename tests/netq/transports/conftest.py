"""Cases that all transports share. A test runs on each transport unless `on` limits it (tests/wires.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from netq import NetworkLocation
from netq.testing.fixtures import Communicators
from netq.testing.proxy import Proxy
from tests.wires import ALL, NewWire, Wire


@pytest.fixture(params=ALL)
def wire(request: pytest.FixtureRequest, new_wire: NewWire) -> Wire:
    return new_wire(request.param)


@pytest.fixture
def communicators(wire: Wire, proxies: Callable[[NetworkLocation], Proxy]) -> Iterator[Communicators]:
    """Closes the communicators of the test before the proxies between them."""
    with Communicators(wire.make) as communicators:
        yield communicators
