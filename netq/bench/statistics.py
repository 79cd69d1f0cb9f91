"""Percentiles, and the search for a rate. Pure.

Percentiles are by nearest rank: the p-th of n values is the one at rank ceil(p / 100 * n) of the sorted values, the
smallest measured value that at least p of 100 do not exceed. Nothing is interpolated. With fewer than 1,000 values
p99.9 is the maximum.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from fractions import Fraction
from typing import TypeVar

T = TypeVar("T", int, float)

PERCENTILES = ("50", "90", "99", "99.9")  # text: the float 99.9 / 100 * 1000 is above 999, and gives rank 1000
CLOSE = 1.05  # ratio of the rate that fails to the rate that holds at which a search ends
LEAST, MOST = 1.0, 1e7  # messages a second: the bounds of a search
REACHED = 0.95  # share of a rate that is answered in its time; below, a curve ends
FIRST = 1000.0  # messages a second: where a search begins


def rank(percent: str, count: int) -> int:
    """Return the rank of a percentile among `count` sorted values, counted from 1."""
    return max(1, math.ceil(Fraction(percent) * count / 100))


def percentile(percent: str, ordered: Sequence[T]) -> T:
    """Return a percentile of sorted values; there is at least one."""
    return ordered[rank(percent, len(ordered)) - 1]


def spread(values: Iterable[int], unit: int) -> dict[str, float]:
    """Return minimum, percentiles and maximum, each divided by `unit`."""
    ordered = sorted(values)
    found = {f"p{percent}": percentile(percent, ordered) / unit for percent in PERCENTILES}
    return {"min": ordered[0] / unit, **found, "max": ordered[-1] / unit}


def may_exceed(percent: str, count: int) -> int:
    """Return how many of `count` values may exceed a limit that the percentile does not exceed."""
    return count - rank(percent, count)


def search(first: float = FIRST) -> Generator[float, bool, float]:
    """Yield the rates to try; take whether each holds; return the highest that holds, to within CLOSE; 0: none does.

    Doubles, or halves, until one rate holds and one fails, and bisects. It assumes that a rate holds if a higher one
    does. On a real machine that is not quite so; then the result is one rate that holds, and maybe not the highest.
    """
    low, high = 0.0, first
    if (yield high):
        low = high
        while low < MOST and (yield (high := min(2 * low, MOST))):
            low = high
    else:
        while not low:
            if high <= LEAST:
                return 0.0
            middle = max(high / 2, LEAST)
            if (yield middle):
                low = middle
            else:
                high = middle
    while high / low > CLOSE:
        middle = (low * high) ** 0.5
        if (yield middle):
            low = middle
        else:
            high = middle
    return low
