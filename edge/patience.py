"""Waits for what may pass by itself: a wrong clock, an old certificate, a disk, a lock, no memory, no process.

Owned by edge/__main__.py and edge/agent.py, in their thread. Nobody visits a board: it ends for what a person has to
correct in its file or its command line, and waits for all else. The server that is not there is netq's to wait for.

    step raises ──► says why, once ──► a pause, which grows ──► step again ──► … ──► says that it has passed
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from edge.child import ChildFailed
from edge.supervisor import Supervisor
from netq.cli.terminal import sentence
from netq.cli.toml_file import in_file_terms
from netq.errors import InvalidOption, NotNow, SecurityError

log = logging.getLogger("edge")
T = TypeVar("T")

# A RuntimeError is Python's when the system gives it no thread.
_PASSING = (NotNow, SecurityError, OSError, MemoryError, RuntimeError, ChildFailed)
_FIRST = 1.0  # seconds until the second try; then twice as long each time, up to one of the next two
_LOOK = 5.0  # seconds between looks at files and the clock, which cost little
_TRY = 60.0  # seconds between other tries: the start of a child may import torch
_REMIND = 3600.0  # seconds until the same reason is said again, at most; at first a minute, then twice as long
_STEADY = 300.0  # seconds without a failure, after which the next one is a new one


class Patience:
    """Calls a step until it succeeds.

    supervisor: gets signs of life during the pauses, and a status that says what the agent waits for.
    clock, sleep: as time.monotonic and time.sleep.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._sleep = sleep
        self._failed = float("-inf")  # when the last failure's pause was over
        self._since: float | None = None  # when the agent said that it waits; None: it has said that it goes on
        self._pause = _FIRST
        self._reason = ""
        self._distance = 0.0  # seconds after which `reason` is said again
        self._due = 0.0  # when that is

    def until(self, step: Callable[[], T]) -> T:
        """Call `step` until it raises nothing that may pass, and return what it returns.

        Raises what is a person's to correct: InvalidOption, unless it is a NotNow.
        """
        while True:
            try:
                found = step()
            except _PASSING as error:
                if isinstance(error, InvalidOption) and not isinstance(error, NotNow):
                    raise
                log.debug("where it happened", exc_info=error)
                most = _LOOK if isinstance(error, (NotNow, SecurityError)) else _TRY
                self._wait(in_file_terms(sentence(error)), most)
            else:
                self.passed()
                return found

    def passed(self) -> None:
        """Say that the agent goes on, if it has said that it waits. For a step that succeeds before it returns."""
        if self._since is not None:
            log.warning("going on after %.0f s; this has passed: %s", self._clock() - self._since, self._reason)
            self._since = None

    def _wait(self, reason: str, most: float) -> None:
        self._supervisor.check_copies()
        now = self._clock()
        if now - self._failed > _STEADY:
            self._pause, self._reason = _FIRST, ""
        if reason != self._reason:
            self._reason, self._distance, self._due = reason, _TRY, now
        if now >= self._due:
            text = "not taking part: %s; the agent waits until this has passed, and tries again every %g s or sooner"
            log.warning(text, reason, most)
            self._due = now + self._distance
            self._distance = min(2 * self._distance, _REMIND)
            self._since = now if self._since is None else self._since
            self._supervisor.ready()  # a start that waits is no start that has failed
        self._supervisor.status(f"waiting: {reason}")
        until = now + min(self._pause, most)
        while (left := until - self._clock()) > 0:
            due = self._supervisor.alive()
            self._sleep(left if due is None else min(left, due))
        self._pause = min(2 * self._pause, most)
        self._failed = self._clock()
