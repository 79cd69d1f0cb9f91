"""Communicators on gRPC, plain and under TLS, closed at the end of the test.

grpc keeps no thread and no descriptor after the last stream of the process, so the leak check of tests/conftest.py
is exact without a warm-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from netq import NetworkLocation, Protocol
from netq.security import certificates
from netq.testing.fixtures import Communicators, Make
from netq.testing.proxy import Proxy
from tests.netq.makers import plain, under_tls


@pytest.fixture(params=["plain", "tls"])
def wire(request: pytest.FixtureRequest, files: certificates.Files) -> Make:
    return plain(Protocol.GRPC) if request.param == "plain" else under_tls(Protocol.GRPC, files)


@pytest.fixture
def communicators(proxies: Callable[[NetworkLocation], Proxy]) -> Iterator[Communicators]:
    with Communicators(plain(Protocol.GRPC)) as communicators:
        yield communicators
