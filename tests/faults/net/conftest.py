"""Sites for the network tests: a server and clients of one wire at the two ends of their own cable.

Slow tests run on both wires at the same time. Without root or the tools, all of them are skipped; with NETQ_FAULTS=must
they fail instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from netq import NetworkLocation
from netq.core import Communicator
from netq.security import certificates
from netq.testing.fixtures import Communicators, introduce
from tests.faults import hosts
from tests.faults.hosts import Cable
from tests.wires import SOCKETS, Wire

MOST = 4  # cables in one test


@dataclass(frozen=True)
class Site:
    """The site of a scenario: the kind of wire, a cable, and the communicators at its ends."""

    kind: str
    cable: Cable
    communicators: Communicators

    def pair(self, **options: Any) -> tuple[Communicator, Communicator]:
        """Return a server and a client with a session at the ends of the cable; the options are for both."""
        with self.cable.server.inside():
            server = self.communicators.server(NetworkLocation(self.cable.server.address, 0), **options)
        with self.cable.client.inside():
            client = self.communicators.client(server.netloc, **options)
        introduce(server, client)
        return server, client


Scenario = Callable[[Site], None]
OnBoth = Callable[..., None]


@pytest.fixture(scope="session")
def possible() -> None:
    """Skip or fail where no hosts can be made."""
    hosts.sweep()
    if reason := hosts.missing():
        (pytest.fail if os.environ.get("NETQ_FAULTS") == "must" else pytest.skip)(f"no hosts can be made: {reason}")


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    """Certificates for the servers of all cables, instead of those for this machine."""
    servers = [f"10.77.{number}.2" for number in range(1, MOST + 1)]
    return certificates.init(tmp_path_factory.mktemp("certificates"), servers)


@pytest.fixture
def wires(files: certificates.Files) -> dict[str, Wire]:
    """TCP, plain and under TLS: what a network does is done to TCP, whatever it carries.

    And a thread of a namespace's could not make them there: all of gRPC in a process shares threads of its own, a
    broker would need a host, and shared memory has no network.
    """
    return {kind: Wire(kind, files) for kind in SOCKETS}


@pytest.fixture
def cable(possible: None) -> Iterator[Cable]:
    with Cable(1) as cable:
        yield cable
    assert not hosts.left(os.getpid())


@pytest.fixture
def on_both(possible: None, wires: dict[str, Wire]) -> Iterator[OnBoth]:
    """Run scenarios on both wires at the same time, each at its own site."""

    def act(*scenarios: Scenario) -> None:
        plays = [(scenario, wire) for scenario in scenarios for wire in wires.values()]
        with ExitStack() as stack, ThreadPoolExecutor(len(plays)) as pool:
            cables = [stack.enter_context(Cable(number)) for number in range(1, len(plays) + 1)]
            acts = [pool.submit(_act, *play, cable) for play, cable in zip(plays, cables, strict=True)]
        for done in acts:
            done.result()

    yield act
    assert not hosts.left(os.getpid())


def _act(scenario: Scenario, wire: Wire, cable: Cable) -> None:
    with Communicators(wire.make) as communicators:
        scenario(Site(wire.kind, cable, communicators))
