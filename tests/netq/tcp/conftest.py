"""Communicators on TCP, closed at the end of the test, and a proxy that fails on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import netq
from netq import CommunicatorOptions, NetworkLocation, Purpose
from netq.core import Communicator
from netq.security import certificates
from netq.testing.proxy import Proxy
from netq.testing.stage import Stage


def make(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
    return netq.new(netq.Protocol.TCP, purpose, options)


@pytest.fixture
def proxies() -> Iterator[Callable[[NetworkLocation], Proxy]]:
    with ExitStack() as stack:
        yield lambda upstream: stack.enter_context(Proxy(upstream))


@pytest.fixture
def stage(proxies: Callable[[NetworkLocation], Proxy]) -> Iterator[Stage]:
    with Stage(make) as stage:
        yield stage


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    return certificates.make(tmp_path_factory.mktemp("certificates"))
