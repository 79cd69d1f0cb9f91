"""Fixtures: a loop that runs, and a pair of sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.netq.io.stage import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    stage.loop.start()
    yield stage
    stage.loop.stop()
    stage.loop.join()
    assert stage.crashes.empty()


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        yield one, other
