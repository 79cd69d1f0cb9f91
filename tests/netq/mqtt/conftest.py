"""Communicators at the broker of the test session, each test with its own prefix; and brokers to kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from netq.testing.fixtures import Communicators
from tests.netq.makers import at_broker
from tests.servers.mosquitto import Mosquitto

NewBroker = Callable[..., Mosquitto]


@pytest.fixture
def new_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewBroker]:
    """Start brokers that a test may kill."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Mosquitto(tmp_path_factory.mktemp("own"), **options))


@pytest.fixture
def communicators(broker: Mosquitto) -> Iterator[Communicators]:
    with Communicators(at_broker(broker.netloc)) as communicators:
        yield communicators
