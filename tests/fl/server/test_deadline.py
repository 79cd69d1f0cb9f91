"""A client that is slower than the deadline: it trains once for each round, and both sides say so."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

import fl
from fl.properties import title
from tests.fl.federation import SHORT, SOON, A, Federation, filled


class Asked(fl.Callback):
    """Is set when a client has been asked for the second time, and then for the fourth, …"""

    def __init__(self) -> None:
        self.again = threading.Event()
        self._count = 0

    def client_is(self, client: uuid.UUID, state: fl.ClientState, size: int) -> None:
        if state is fl.ClientState.TRAINING:
            self._count += 1
            if self._count % 2 == 0:
                self.again.set()


class Clock:
    """The client's clock, on which a training takes as long as it says."""

    def __init__(self) -> None:
        self.passed = 0.0  # seconds, besides those that have really passed

    def monotonic(self) -> float:
        """Return the time."""
        return time.monotonic() + self.passed

    def time(self) -> float:
        """Return the date, which a client tells when it introduces itself."""
        return time.time()


def test_a_late_update_that_counts_is_not_trained_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, trainings, clock = Asked(), list[int](), Clock()
    monkeypatch.setattr("fl.conversation.time", clock)

    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        trainings.append(config["round"])
        clock.passed += SHORT
        assert asked.again.wait(SOON)
        asked.again.clear()
        return fl.Update(filled(len(trainings)), 1)

    settings: Any = {"min_clients": 1, "suspend_after": 100, "callbacks": [asked]}
    with caplog.at_level(logging.WARNING), Federation(deadline=SHORT, **settings) as federation:
        federation.join(A, train)
        for number in (1, 2, 3):
            federation.set_deadline(SHORT)
            assert not federation.round(1).clients
            federation.set_deadline(3 * SOON)  # the attempt in which the late update counts
            assert federation.round(1).clients == (A,)
            assert trainings == [*range(1, number + 1)]
    said = [line.getMessage() for line in caplog.records]
    assert sum("the reply was ready after" in line and "the server waits 0.4 s" in line for line in said) == 1


def test_the_deadline_may_be_a_schedule() -> None:
    with Federation(deadline=fl.schedules.linear(30.0, 40.0, 2), min_clients=1) as federation:
        seen: list[float] = []

        def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
            seen.append(federation.server._standings["train"].deadline)
            return fl.Update(filled(1), 1)

        federation.join(A, train)
        for _ in range(3):
            federation.round(1)
        assert seen == [30.0, 40.0, 40.0]


def test_the_log_recommends_a_deadline(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked()

    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        asked.again.wait(SOON)
        return fl.Update(filled(1), 1)

    with caplog.at_level(logging.WARNING), Federation(min_clients=1, deadline=SHORT, callbacks=[asked]) as federation:
        federation.join(A, train)
        assert not federation.round(1).clients
        federation.set_deadline(3 * SOON)
        assert federation.round(1).clients == (A,)
    (line,) = [each.getMessage() for each in caplog.records if "its answer took" in each.getMessage()]
    assert line.startswith(f"{title(A)}: its answer took ")
    assert "; rounds would wait for it with one of " in line
