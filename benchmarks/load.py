"""The search for the highest rate that an open loop sustains. Pure: a generator of rates."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

START = 2000.0  # messages a second
TOP = 2e6  # messages a second: no higher rate is tried
RATES = tuple(round(1000 * 2 ** (step / 2)) for step in range(16))  # messages a second, of a curve: to 181,000
REACHED = 0.95  # share of a rate that is answered in its time; below, the curve ends
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


def point(rate: float, delays: Sequence[float]) -> dict[str, float]:
    """Return a rate, the rate of the echoes, and latencies in milliseconds.

    delays: of each message, in seconds, in the order of sending.
    """
    answered = len(delays) / (len(delays) / rate + delays[-1])
    latencies = {f"p{percent:g}": percentile(delays, percent) * 1e3 for percent in (50, 99, 99.9)}
    return {"rate": rate, "answered": answered, **latencies}


def best(tries: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the try with the lowest p99.9, of those that reached the rate, if any did."""
    return min(tries, key=lambda each: (not is_reached(each), each["p99.9"]))


def is_reached(point: dict[str, float]) -> bool:
    """Whether the echoes came as fast as the messages were due."""
    return point["answered"] >= REACHED * point["rate"]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile: the smallest value that is not exceeded by at least this share of values."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]
