"""Means of 64-bit integers. A float64 holds whole numbers up to 2**53, so what is averaged are differences.

An aggregation keeps one of the updates as the base, and aggregates the differences of the others from it. Equal
integers have a difference of 0, so their mean is exactly that integer; differences below 2**53 are exact.
Pure functions of flat arrays; used by fl/aggregation/mean.py and fl/strategies/robust.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_HALF = 32  # bits of each half of an integer: differences of halves cannot overflow
_ROUND_DOWN = 1 - 2.0**-53  # the product is at most the float below, so that no sum leaves the range of the dtype


def difference(values: NDArray[Any], base: NDArray[Any]) -> NDArray[np.float64]:
    """Return `values - base` as float64, for arrays of int64 or uint64."""
    low = np.array(2**_HALF - 1, values.dtype)
    highs = (values >> _HALF).astype(np.int64) - (base >> _HALF).astype(np.int64)
    lows = (values & low).astype(np.int64) - (base & low).astype(np.int64)
    result: NDArray[np.float64] = highs * 2.0**_HALF + lows
    return result


def add(base: NDArray[Any], change: NDArray[np.float64]) -> NDArray[Any]:
    """Return `base + change` in the dtype of `base`, within its range, rounded to the nearest integer, half to even."""
    bounds = np.iinfo(base.dtype)
    lowest, highest = (difference(np.full_like(base, bound), base) for bound in (bounds.min, bounds.max))
    change = np.clip(change, lowest * _ROUND_DOWN, highest * _ROUND_DOWN)
    whole = np.floor(change)
    high = np.floor(whole * 2.0**-_HALF)
    low, rest = whole - high * 2.0**_HALF, change - whole
    # modulo 2**64, which no result exceeds
    total = base.view(np.uint64) + (high.astype(np.int64).view(np.uint64) << _HALF) + low.astype(np.uint64)
    total += (rest > 0.5) | ((rest == 0.5) & (total % 2 == 1))
    return total.view(base.dtype)
