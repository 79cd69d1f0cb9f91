"""Waits for what may pass by itself: a wrong clock, an old certificate, a disk, a lock, no memory, no process.

Owned by edge/__main__.py and edge/agent.py, in their thread. Nobody visits a board: it ends for what a person has to
correct in its file or its command line, and waits for all else. Once it waits, it waits for that, too: a file may be
half written at this moment. The server that is not there is netq's to wait for.

    step raises ──► says why, once ──► a pause, which grows ──► step again ──► … ──► says that it has passed
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from edge.child import ChildFailed
from edge.supervisor import Supervisor
from netq.cli.terminal import sentence
from netq.errors import InvalidOption, NotNow, SecurityError
from netq.toml_file import in_file_terms

log = logging.getLogger("edge")
T = TypeVar("T")

# A RuntimeError is Python's when the system gives it no thread.
_PASSING = (NotNow, SecurityError, OSError, MemoryError, RuntimeError, ChildFailed)
_FIRST = 1.0  # seconds until the second try; then twice as long each time, up to one of the next two
_LOOK = 5.0  # seconds between looks at files and the clock, which cost little
_TRY = 60.0  # seconds between other tries: the start of a child may import torch
_REMIND = 3600.0  # seconds until the same reason is said again, at most; at first a minute, then twice as long
_STEADY = 300.0  # seconds without a failure, after which the next one is a new one


class FileChanged(Exception):
    """The device's file has changed since it was read: the agent is to begin anew."""


class Watched:
    """The device's file, which a person may correct while the agent waits. None: there is none."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._seen = self._content()

    def seen(self) -> None:
        """Note that the file is read now."""
        self._seen = self._content()

    def has_changed(self) -> bool:
        """Return whether the file has changed since it was read."""
        return self._content() != self._seen

    def _content(self) -> bytes | None:
        try:
            return None if self._path is None else self._path.read_bytes()
        except OSError:
            return None


class Patience:
    """Calls a step until it succeeds.

    supervisor: gets signs of life during the pauses, and a status that says what the agent waits for.
    watched:    is looked at during the pauses, too.
    clock, sleep: as time.monotonic and time.sleep.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        watched: Watched,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._supervisor = supervisor
        self._watched = watched
        self._clock = clock
        self._sleep = sleep
        self._failed = float("-inf")  # when the last failure's pause was over
        self._since: float | None = None  # when the agent said that it waits; None: it has said that it goes on
        self._pause = _FIRST
        self._reason = ""
        self._distance = 0.0  # seconds after which `reason` is said again
        self._due = 0.0  # when that is

    def until(self, step: Callable[[], T]) -> T:
        """Call `step` until it raises nothing that may pass, and return what it returns. Say `passed` when all is done.

        Raises what is a person's to correct, if the agent does not wait yet: InvalidOption, unless it is a NotNow. And
        FileChanged.
        """
        while True:
            try:
                return step()
            except (*_PASSING, InvalidOption) as error:
                if self._since is None and isinstance(error, InvalidOption) and not isinstance(error, NotNow):
                    raise
                log.debug("where it happened", exc_info=error)
                most = _LOOK if isinstance(error, (InvalidOption, SecurityError)) else _TRY
                self._wait(in_file_terms(sentence(error)), most)

    def passed(self) -> None:
        """Say that the agent takes part, if it has said that it waits."""
        if self._since is not None:
            log.warning("going on after %.0f s; this has passed: %s", self._clock() - self._since, self._reason)
            self._since = None

    def pause(self, seconds: float) -> None:
        """Sleep, and give the supervisor signs of life. Raises FileChanged, and what Supervisor.check_copies does."""
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0:
            self._supervisor.check_copies()
            if self._watched.has_changed():
                log.info("the device's file has changed: reading it again")
                self._pause = _FIRST
                raise FileChanged
            due = self._supervisor.alive()
            self._sleep(min(left, _LOOK, math.inf if due is None else due))

    def _wait(self, reason: str, most: float) -> None:
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
        self.pause(min(self._pause, most))
        self._pause = min(2 * self._pause, most)
        self._failed = self._clock()
