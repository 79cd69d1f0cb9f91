"""Shared memory does what the contract says: each check of the public suite, at a port and at a path."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from netq import CommunicatorOptions, NetworkLocation, Purpose
from netq.core import Communicator
from netq.testing.conformance import CHECKS
from netq.testing.stage import Make
from tests.netq.shm.conftest import make_shm


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance(check: Callable[[Make], None]) -> None:
    check(make_shm)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance_at_a_path(check: Callable[[Make], None], tmp_path: Path) -> None:
    ports = itertools.count(1)

    def make(purpose: Purpose, options: CommunicatorOptions) -> Communicator:
        """A port stands for a path: the suite asks for port 0, and comes back to what it is told."""
        host, port = options.netloc
        if purpose is Purpose.SERVER and not host.startswith("/"):
            host, port = str(tmp_path / f"server-{port or next(ports)}"), 0
        return make_shm(purpose, dataclasses.replace(options, netloc=NetworkLocation(host, port)))

    check(make)
    assert list(tmp_path.iterdir()) == []
