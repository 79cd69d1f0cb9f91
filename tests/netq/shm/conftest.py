"""Communicators on shared memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from netq import Protocol
from netq.testing.fixtures import Communicators
from tests.netq.makers import plain

collect_ignore_glob = [] if sys.platform.startswith("linux") else ["test_*.py"]


@pytest.fixture
def communicators() -> Iterator[Communicators]:
    with Communicators(plain(Protocol.SHM)) as communicators:
        yield communicators
