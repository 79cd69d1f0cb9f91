"""Communicators on gRPC, plain and under TLS, closed at the end of the test, and a proxy that fails on demand.

grpc keeps nothing once the last stream of the process has ended, so there is nothing to warm up: the leak check of
tests/conftest.py is exact as it is.
"""

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
from netq.testing.stage import Make, Stage


def make(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
    return netq.new(netq.Protocol.GRPC, purpose, options)


def make_tls(files: certificates.Files) -> Make:
    security = {
        Purpose.SERVER: SecurityOptions(files.key, files.certificate),
        Purpose.CLIENT: SecurityOptions(certificate=files.authority),
    }
    return lambda purpose, options: make(purpose, dataclasses.replace(options, security=security[purpose]))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["plain", "tls"])
def wire(request: pytest.FixtureRequest, files: certificates.Files) -> Make:
    return make if request.param == "plain" else make_tls(files)


@pytest.fixture
def proxies() -> Iterator[Callable[[NetworkLocation], Proxy]]:
    with ExitStack() as stack:
        yield lambda upstream: stack.enter_context(Proxy(upstream))


@pytest.fixture
def stage(proxies: Callable[[NetworkLocation], Proxy]) -> Iterator[Stage]:
    with Stage(make) as stage:
        yield stage
