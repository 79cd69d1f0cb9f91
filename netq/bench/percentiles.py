"""Percentiles by nearest rank. Pure.

The p-th percentile of n values is the one at rank ceil(p / 100 * n) of the sorted ones, counted from 1: the smallest
value that at least p of 100 do not exceed. It is always one that was measured; nothing is interpolated. With fewer
than 1,000 values p99.9 is their maximum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

SHOWN = ("50", "90", "99", "99.9")  # as text: 99.9 / 100 * 1000 is above 999 as a float, and the rank would be 1000


def rank(percent: str, count: int) -> int:
    """Return which of `count` sorted values it is, counted from 1."""
    return max(1, math.ceil(Fraction(percent) * count / 100))


def percentile(percent: str, ordered: Sequence[int]) -> int:
    """Return it of values that are sorted; there is one at least."""
    return ordered[rank(percent, len(ordered)) - 1]


def spread(values: Iterable[int], unit: int) -> dict[str, float]:
    """Return the percentiles that are shown, the least and the largest; each divided by `unit`."""
    ordered = sorted(values)
    found = {f"p{percent}": percentile(percent, ordered) / unit for percent in SHOWN}
    return {"min": ordered[0] / unit, **found, "max": ordered[-1] / unit}


def may_exceed(percent: str, count: int) -> int:
    """Return how many of `count` values may be above a limit, when the percentile is not to be."""
    return count - rank(percent, count)
