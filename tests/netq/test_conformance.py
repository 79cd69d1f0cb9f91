"""Every transport does what the contract says: each check of the public suite with each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from netq import CommunicatorOptions, Protocol, Purpose, SecurityOptions
from netq.core import Communicator
from netq.options import PostQuantum
from netq.testing import loopback
from netq.testing.conformance import CHECKS, check_communicator
from netq.testing.fixtures import Make
from tests.netq.authority import Authority
from tests.netq.makers import at_broker, at_path, in_process, plain, sealed, under_tls

Request: TypeAlias = pytest.FixtureRequest
New: TypeAlias = Callable[[Path], Make]  # given an empty folder


def of_mqtt(request: Request) -> New:
    netloc = request.getfixturevalue("broker").netloc
    return lambda folder: at_broker(netloc)


def of_mqtt_under_tls(request: Request) -> New:
    netloc, files = request.getfixturevalue("tls_broker").netloc, request.getfixturevalue("files")
    return lambda folder: at_broker(netloc, SecurityOptions(certificate=files.authority))


def of(protocol: Protocol) -> Callable[[Request], New]:
    return lambda request: lambda folder: plain(protocol)


def of_tls(protocol: Protocol, post_quantum: PostQuantum = "prefer") -> Callable[[Request], New]:
    return lambda request: lambda folder: under_tls(protocol, request.getfixturevalue("files"), post_quantum)


def of_seals(under: Callable[[Request], New]) -> Callable[[Request], New]:
    def begin(request: Request) -> New:
        new, authority = under(request), Authority(request.getfixturevalue("tmp_path_factory").mktemp("seals"))
        return lambda folder: sealed(new(folder), authority)

    return begin


MAKERS: dict[str, Callable[[Request], New]] = {  # how each begins a session of tests, and then a test
    "loopback": lambda request: lambda folder: in_process,
    "tcp": of(Protocol.TCP),
    "tcp+tls": of_tls(Protocol.TCP),
    "tcp+tls of Python": of_tls(Protocol.TCP, "off"),
    "mqtt": of_mqtt,
    "mqtt+tls": of_mqtt_under_tls,
    "grpc": of(Protocol.GRPC),
    "grpc+tls": of_tls(Protocol.GRPC),
    "loopback+seal": of_seals(lambda request: lambda folder: in_process),
    "tcp+seal": of_seals(of(Protocol.TCP)),
    "mqtt+seal": of_seals(of_mqtt),
    "grpc+seal": of_seals(of(Protocol.GRPC)),
    "shm": of(Protocol.SHM),
    "shm+path": lambda request: at_path,
}


_QUICK = ("loopback", "tcp", "shm")
_KINDS = [kind if kind in _QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in MAKERS]


@pytest.fixture(scope="session", params=_KINDS)
def new(request: Request) -> New:
    return MAKERS[request.param](request)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance(check: Callable[[Make], None], new: New, tmp_path: Path) -> None:
    check(new(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_every_protocol_is_held_to_the_suite() -> None:
    assert {protocol.value for protocol in Protocol} == {name.partition("+")[0] for name in MAKERS} - {"loopback"}


def test_the_suite_runs_every_check_and_names_the_one_that_fails() -> None:
    opened: list[Purpose] = []

    def broken(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
        opened.append(purpose)
        if len(opened) > 2:
            raise OSError("no more")
        return in_process(purpose, options)

    with pytest.raises(OSError, match="no more") as raised:
        check_communicator(broken)
    assert opened == [Purpose.SERVER, Purpose.CLIENT, Purpose.SERVER]
    assert "check_client_first" in raised.value.__notes__[0]


def test_every_check_has_a_docstring_and_is_listed_once() -> None:
    assert len(set(CHECKS)) == len(CHECKS)
    assert all(check.__doc__ for check in CHECKS)
    assert {check.__name__ for check in CHECKS} == {
        line.split("(")[0].removeprefix("def ")
        for file in Path(loopback.__file__).parent.glob("checks/*.py")
        for line in file.read_text().splitlines()
        if line.startswith("def check_")
    }
