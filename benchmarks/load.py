"""The search for the highest rate that an open loop sustains. Pure: a generator of rates."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

START = 2000.0  # messages a second
TOP = 2e6  # messages a second: no higher rate is tried
STEPS = 4  # bisections: the answer is within 2**(1/16), 4.4 %, of the first rate that failed


def search(start: float = START, steps: int = STEPS) -> Generator[float, bool, float]:
    """Yield the rates to try; take whether each was sustained; return the highest sustained rate, 0 if there is none.

    Doubles the rate until one fails, then bisects the last octave geometrically.
    """
    low, high = 0.0, start
    while high <= TOP and (yield high):
        low, high = high, high * 2
    if not low:
        return 0.0
    for _ in range(steps):
        middle = math.sqrt(low * high)
        if (yield middle):
            low = middle
        else:
            high = middle
    return low


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile: the smallest value that is not exceeded by at least this share of values."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]
