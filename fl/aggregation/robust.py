"""What robust strategies make of the same elements of all updates: arrays of real numbers, [updates, elements].

Pure, and without state; called by fl/strategies/robust.py, block by block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def reals(array: NDArray[Any]) -> NDArray[Any]:
    """Return the same memory as real numbers: a complex one is two, real and imaginary part."""
    real: NDArray[Any] = array.view(array.real.dtype)
    return real


def mean(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the mean: equal updates give exactly themselves, and no sum overflows."""
    value: NDArray[Any]
    try:
        with np.errstate(over="raise"):
            value = rows[0] + (rows[1:] - rows[0]).sum(axis=0) / len(rows)
    except FloatingPointError:  # they are further apart than a float goes
        value = (rows / len(rows)).sum(axis=0)
    return value


def trimmed_mean(rows: NDArray[Any], cut: int) -> NDArray[Any]:
    """Return the mean without the `cut` largest and smallest."""
    return mean(np.sort(rows, axis=0)[cut : len(rows) - cut])


def median(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the median: what is left if all but the one or two in the middle are cut off."""
    return trimmed_mean(rows, (len(rows) - 1) // 2)


def mean_around_median(rows: NDArray[Any], keep: int) -> NDArray[Any]:
    """Return the mean of the `keep` values that are closest to the median: neighbours, when they are sorted."""
    rows = np.sort(rows, axis=0)
    middle = median(rows)
    with np.errstate(over="ignore"):
        low, high = middle - rows[: len(rows) - keep], rows[keep:] - middle
    first = (low > high).sum(axis=0)  # those that are further below than the one `keep` places on is above
    return mean(np.take_along_axis(rows, first + np.arange(keep)[:, np.newaxis], axis=0))


def squared_norms(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the square of the length of each row."""
    squares: NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows)
    return squares


def scores(distances: NDArray[np.float64], byzantine: int) -> NDArray[np.float64]:
    """Return for each update the sum of the squares to its n - f - 2 closest others, at least one."""
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    closest = max(1, len(others) - byzantine - 2)
    with np.errstate(over="ignore"):
        sums: NDArray[np.float64] = np.sort(others, axis=1)[:, :closest].sum(axis=1)
    return sums
