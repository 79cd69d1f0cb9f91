"""Calls at a later time. Pure; owned by one loop."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any

_SWEEP = 256  # timers: from so many on, cancelled ones are removed each time that the number has doubled


class Timer:
    """One call, which can be cancelled."""

    __slots__ = ("args", "function")

    def __init__(self, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.function: Callable[..., object] | None = function
        self.args = args

    def cancel(self) -> None:
        """Cancel the call; harmless after it."""
        self.function = None
        self.args = ()


class Timers:
    """The timers of a loop, in a heap."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._sequence = itertools.count()
        self._sweep_at = _SWEEP

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next(self) -> float:
        """The time of the first; infinity if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def add(self, when: float, function: Callable[..., object], args: tuple[Any, ...]) -> Timer:
        """Call `function(*args)` at the time `when`; never if that is infinite."""
        timer = Timer(function, args)
        # A cancelled timer stays in the heap until its time: to take it out of the middle would cost a search. A timer
        # that is far away and always cancelled, as a timeout is, would fill the heap, so it is swept as it doubles.
        if when < math.inf:
            heapq.heappush(self._heap, (when, next(self._sequence), timer))
        if len(self._heap) >= self._sweep_at:
            left = [entry for entry in self._heap if entry[2].function is not None]
            heapq.heapify(left)
            self._heap = left  # in one step: the loop's thread reads `next` without the baton
            self._sweep_at = max(_SWEEP, 2 * len(self._heap))
        return timer

    def run(self, now: float) -> bool:
        """Call those that are due, in order; return whether there were any."""
        ran = False
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            ran = True
            if timer.function is not None:
                timer.function(*timer.args)
        return ran
