"""What the fault tests share: the wire under test (TCP, plain and under TLS), and the table of figures at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import netq
from netq import CommunicatorOptions, NetworkLocation, Purpose, SecurityOptions
from netq.core import Communicator
from netq.security import certificates
from netq.testing.proxy import Proxy
from netq.testing.stage import Stage

KINDS = ("tcp", "tls")
Figure = Callable[[str, str], None]

_FIGURES = pytest.StashKey[list[tuple[str, str]]]()


@dataclasses.dataclass(frozen=True)
class Wire:
    """TCP, plain or under TLS: what to give a server, and what a client."""

    kind: str
    files: certificates.Files

    def security(self, purpose: Purpose) -> SecurityOptions | None:
        """Return the options of one side; None for plain TCP."""
        if self.kind == "tcp":
            return None
        if purpose is Purpose.SERVER:
            return SecurityOptions(self.files.key, self.files.certificate)
        return SecurityOptions(certificate=self.files.authority)

    def make(self, purpose: Purpose, options: CommunicatorOptions) -> Communicator:
        """Return a communicator on this wire, as Stage wants it."""
        return netq.new(options=dataclasses.replace(options, security=self.security(purpose)), purpose=purpose)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def wires(files: certificates.Files) -> dict[str, Wire]:
    """Both, for a test that takes long and tries them at the same time."""
    return {kind: Wire(kind, files) for kind in KINDS}


@pytest.fixture(params=KINDS)
def wire(request: pytest.FixtureRequest, files: certificates.Files) -> Wire:
    return Wire(request.param, files)


@pytest.fixture
def proxies() -> Iterator[Callable[[NetworkLocation], Proxy]]:
    with ExitStack() as stack:
        yield lambda upstream: stack.enter_context(Proxy(upstream))


@pytest.fixture
def stage(wire: Wire, proxies: Callable[[NetworkLocation], Proxy]) -> Iterator[Stage]:
    with Stage(wire.make) as stage:
        yield stage


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Put a line into the table that the run ends with: a case of docs/reliability.md, and what was measured."""
    figures = request.config.stash.setdefault(_FIGURES, [])

    def add(case: str, text: str) -> None:
        figures.append((case, text))

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = config.stash.get(_FIGURES, [])
    if figures:
        terminalreporter.section("faults: what was measured")
    for case, text in sorted(figures, key=lambda figure: figure[0]):
        terminalreporter.write_line(f"{case:28} {text}")
