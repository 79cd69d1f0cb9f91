"""Pauses of an agent that take no time, for tests in which something passes meanwhile."""

from __future__ import annotations

from collections.abc import Callable


class Pauses:
    """The clock and the sleep of edge.patience.Patience. In each sleep, the next of `mends` is done."""

    def __init__(self, *mends: Callable[[], object]) -> None:
        self._now = 0.0
        self._mends = list(mends)

    def clock(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds
        if self._mends:
            self._mends.pop(0)()
