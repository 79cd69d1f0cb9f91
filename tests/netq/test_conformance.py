"""Every transport does what the contract says: each check of the public suite with each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

import netq
from netq import CommunicatorOptions, Purpose, SecurityOptions
from netq.core import Communicator
from netq.security import certificates
from netq.testing import loopback
from netq.testing.conformance import CHECKS, check_communicator
from netq.testing.stage import Make


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


def make_loopback(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
    return loopback.Server(options) if purpose is Purpose.SERVER else loopback.Client(options)


def make_tcp(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
    return netq.new(netq.Protocol.TCP, purpose, options)


def make_tls(files: certificates.Files) -> Make:
    security = {
        Purpose.SERVER: SecurityOptions(files.key, files.certificate),
        Purpose.CLIENT: SecurityOptions(certificate=files.authority),
    }
    return lambda purpose, options: make_tcp(purpose, dataclasses.replace(options, security=security[purpose]))


@pytest.fixture(params=["loopback", "tcp", "tls"])
def make(request: pytest.FixtureRequest, files: certificates.Files) -> Make:
    return {"loopback": make_loopback, "tcp": make_tcp, "tls": make_tls(files)}[request.param]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance(check: Callable[[Make], None], make: Make) -> None:
    check(make)


def test_the_suite_runs_every_check_and_names_the_one_that_fails() -> None:
    opened: list[Purpose] = []

    def broken(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
        opened.append(purpose)
        if len(opened) > 2:
            raise OSError("no more")
        return make_loopback(purpose, options)

    with pytest.raises(OSError, match="no more") as raised:
        check_communicator(broken)
    assert opened == [Purpose.SERVER, Purpose.CLIENT, Purpose.SERVER]
    assert "check_client_first" in raised.value.__notes__[0]


def test_every_check_says_what_it_wants_and_is_in_the_list_once() -> None:
    assert len(set(CHECKS)) == len(CHECKS)
    assert all(check.__doc__ for check in CHECKS)
    assert {check.__name__ for check in CHECKS} == {
        line.split("(")[0].removeprefix("def ")
        for file in Path(loopback.__file__).parent.glob("checks/*.py")
        for line in file.read_text().splitlines()
        if line.startswith("def check_")
    }
