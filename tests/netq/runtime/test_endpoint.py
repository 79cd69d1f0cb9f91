"""What an endpoint does from time to time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from netq.io.loop import Loop
from netq.options import ConnectionOptions
from netq.protocol.memory import Memory
from netq.runtime.endpoint import Endpoint

MIB = 2**20


class Clock:
    """A loop with one timer, whose time the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timer: tuple[float, Callable[..., object], tuple[Any, ...]] | None = None

    def at(self, when: float, function: Callable[..., object], *args: Any) -> None:
        self._timer = when, function, args

    def monotonic(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        assert self._timer is not None
        when, function, args = self._timer
        if self.now >= when:
            function(*args)


def test_idle_memory_is_given_back_after_a_quiet_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, memory = Clock(), Memory()
    loop = cast(Loop, clock)
    monkeypatch.setattr("netq.runtime.endpoint.time", clock)
    endpoint = Endpoint.__new__(Endpoint)
    endpoint.options = SimpleNamespace(connection=ConnectionOptions(heartbeat=3.0))  # type: ignore[assignment]
    endpoint._memories = {loop: memory}
    endpoint._trim_memory(loop)
    for _ in range(5):
        memory.take(MIB)
        clock.pass_by(3.0)
        assert memory.idle == MIB, "a message has used it since the last heartbeat"
    clock.pass_by(2.9)
    assert memory.idle == MIB
    clock.pass_by(0.1)
    assert memory.idle == 0
