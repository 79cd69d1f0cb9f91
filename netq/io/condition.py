"""How threads wait for what another one does, so that a signal may interrupt them anywhere.

A signal handler runs in the middle of whatever the main thread does, and may wait in turn: for the very thread that
would then wait for what the handler interrupts. So nothing is locked here, and no wait is a long one: a handler that
comes just before a wait begins runs when that ends.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable

LONGEST = 1.0  # seconds of one wait


class Condition:
    """Wakes those who wait for something that has come true. Any thread may wait and ring."""

    __slots__ = ("_sleepers",)

    def __init__(self) -> None:
        self._sleepers: list[queue.SimpleQueue[None]] = []

    def notify(self) -> None:
        """Let all who wait look again. Never waits."""
        for sleeper in [*self._sleepers]:  # tuple() and copy() of CPython 3.11 read beyond what is left of it meanwhile
            sleeper.put(None)

    def wait(self, come: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `come()`, for `timeout` seconds at most; return whether it has."""
        if come():
            return True
        deadline = None if timeout is None else time.monotonic() + timeout
        sleeper: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._sleepers.append(sleeper)
        try:
            return _wait_until(come, sleeper, deadline)
        finally:
            self._sleepers.remove(sleeper)


def _wait_until(come: Callable[[], bool], sleeper: queue.SimpleQueue[None], deadline: float | None) -> bool:
    while not come():
        left = LONGEST if deadline is None else min(deadline - time.monotonic(), LONGEST)
        if left <= 0:
            return False
        with contextlib.suppress(queue.Empty):
            sleeper.get(timeout=left)
    return True
