"""Communicators on TCP. They close before the proxies between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from netq import NetworkLocation, Protocol
from netq.testing.fixtures import Communicators
from netq.testing.proxy import Proxy
from tests.netq.makers import plain


@pytest.fixture
def communicators(proxies: Callable[[NetworkLocation], Proxy]) -> Iterator[Communicators]:
    with Communicators(plain(Protocol.TCP)) as communicators:
        yield communicators
