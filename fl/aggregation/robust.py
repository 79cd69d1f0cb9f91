"""Kernels of the robust strategies.

A kernel takes an array of real numbers [updates, elements], the same elements of all updates, and returns [elements].
Finite rows have a finite result. The difference or sum of two finite rows may overflow: see `mean`. `squared_norms` and
`scores` are for strategies that compare updates by their distances. Pure functions; fl/strategies/robust.py calls them
block by block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def reals(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of the same memory as real numbers. A complex number is two of them."""
    real: NDArray[Any] = array.view(array.real.dtype)
    return real


def mean(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the mean of finite rows. The mean of equal updates is exactly that update, and no sum overflows."""
    value: NDArray[Any]
    try:
        with np.errstate(over="raise"):
            value = rows[0] + (rows[1:] - rows[0]).sum(axis=0) / len(rows)
    except FloatingPointError:  # the difference of two finite values overflows
        value = (rows / len(rows)).sum(axis=0)
    return value


def trimmed_mean(rows: NDArray[Any], cut: int) -> NDArray[Any]:
    """Return the mean without the `cut` largest and the `cut` smallest values."""
    return mean(np.sort(rows, axis=0)[cut : len(rows) - cut])


def median(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the median: the trimmed mean that keeps only the one or two values in the middle."""
    return trimmed_mean(rows, (len(rows) - 1) // 2)


def mean_around_median(rows: NDArray[Any], keep: int) -> NDArray[Any]:
    """Return the mean of the `keep` values that are closest to the median.

    In sorted order these values are adjacent, so it is enough to find the first: the window moves up while its lowest
    value is further from the median than the value behind its highest.
    """
    rows = np.sort(rows, axis=0)
    middle = median(rows)
    with np.errstate(over="ignore"):
        low, high = middle - rows[: len(rows) - keep], rows[keep:] - middle
    first = (low > high).sum(axis=0)
    return mean(np.take_along_axis(rows, first + np.arange(keep)[:, np.newaxis], axis=0))


def squared_norms(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the squared Euclidean norm of each row."""
    squares: NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows)
    return squares


def scores(distances: NDArray[np.float64], byzantine: int) -> NDArray[np.float64]:
    """Return the Krum score of each update: the sum of squared distances to its n - f - 2 nearest others."""
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    closest = max(1, len(others) - byzantine - 2)  # Bulyan scores fewer updates at each step
    with np.errstate(over="ignore"):
        sums: NDArray[np.float64] = np.sort(others, axis=1)[:, :closest].sum(axis=1)
    return sums
