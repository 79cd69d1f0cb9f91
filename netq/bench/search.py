"""The highest rate that holds, by doubling and bisecting. Pure: the caller says whether a rate holds.

Assumes that what holds at a rate holds at each lower one. Where that is not quite so, as on any real machine, it is
one such rate, and no promise that none above it holds.
"""

from __future__ import annotations

from collections.abc import Callable

CLOSE = 1.05  # the rate that holds and the one that does not are so near to each other in the end
LEAST, MOST = 1.0, 1e7  # a second


def highest(holds: Callable[[float], bool], start: float) -> float:
    """Return the highest rate that holds, as near as CLOSE; 0 if not even LEAST does."""
    low, high = _bracket(holds, start)
    while low and high / low > CLOSE:
        middle = (low * high) ** 0.5
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def _bracket(holds: Callable[[float], bool], start: float) -> tuple[float, float]:
    """Return a rate that holds (0: none), and one at most twice that which does not (or is MOST)."""
    rate = start
    if holds(rate):
        while rate < MOST:
            if not holds(min(2 * rate, MOST)):
                return rate, min(2 * rate, MOST)
            rate = min(2 * rate, MOST)
        return rate, rate
    while rate > LEAST:
        rate = max(rate / 2, LEAST)
        if holds(rate):
            return rate, 2 * rate
    return 0.0, rate
