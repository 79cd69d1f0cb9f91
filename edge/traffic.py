"""Counts the bytes of a device's tasks and replies, for the rule fit.max_traffic. Owned by edge/agent.py."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_HOUR = 3600.0  # seconds
_MB = 1e6


class Traffic:
    """The bytes of the last 60 minutes.

    clock: returns seconds, as time.monotonic does.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._messages: deque[tuple[float, int]] = deque()  # when they came or went, and their bytes
        self._total = 0
        self._largest = {"task": 0, "reply": 0}

    def received(self, size: int) -> None:
        """Count a task."""
        self._add("task", size)

    def sent(self, size: int) -> None:
        """Count a reply."""
        self._add("reply", size)

    def after_task(self) -> float:
        """Return the MB of this hour when the task that is here is answered: with the largest reply so far."""
        return (self._last_hour() + self._largest["reply"]) / _MB

    def after_round(self) -> float:
        """Return the MB of this hour after another round: with the largest task and the largest reply so far."""
        return self.after_task() + self._largest["task"] / _MB

    def _add(self, kind: str, size: int) -> None:
        self._messages.append((self._clock(), size))
        self._total += size
        self._largest[kind] = max(self._largest[kind], size)

    def _last_hour(self) -> int:
        while self._messages and self._messages[0][0] <= self._clock() - _HOUR:
            self._total -= self._messages.popleft()[1]
        return self._total
