"""Random numbers for noise, made of bytes of the operating system's cryptographic generator.

Functions over whole arrays, without rejection: the time that they take does not depend on the numbers that come out.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = Callable[[int], bytes]  # returns so many random bytes; a simulation has seeded ones

NORMAL_TAIL = 13.0  # standard deviations up to which numbers go at least: beyond them nothing hides what is added
DISCRETE_TAIL = 9.0
_TABLE = 64.0  # the largest standard deviation that has a table
_TAILS = 9.5  # standard deviations up to which a table goes: 2**-68 is beyond
_DIGITS = 40  # of the probabilities; 64 bits are used


def normal(count: int, random: Bytes = os.urandom) -> NDArray[np.float64]:
    """Return standard normal numbers: 13.3 standard deviations at most, from 128 random bits for the radius of two.

    Source: Box and Muller, 1958, "A note on the generation of random normal deviates".
    """
    half = (count + 1) // 2
    high, low, turn = np.frombuffer(random(24 * half), "<u8").reshape(3, half).astype(np.float64)
    radius = np.sqrt(-2 * np.log((high + (low + 0.5) * 2.0**-64) * 2.0**-64))
    angle = turn * (2 * math.pi * 2.0**-64)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def discrete_normal(count: int, deviation: float, random: Bytes = os.urandom) -> NDArray[np.int64]:
    """Return whole numbers of the discrete normal distribution: P(k) is proportional to exp(-k² / (2 deviation²)).

    A small deviation has a table of 64-bit probabilities. A large one is that of x + step · y for two numbers of a
    smaller one: the sum is of the discrete distribution but for 2**-100, as long as the smaller deviation is nearly
    twice the step.

    Source: Micciancio and Walter, 2017, "Gaussian sampling over the integers: efficient, generic, constant-time"
    (eprint 2017/259), section 4.
    """
    if deviation > _TABLE:
        step = math.isqrt(int(deviation / 2))
        smaller = deviation / math.hypot(1, step)
        return discrete_normal(count, smaller, random) + step * discrete_normal(count, smaller, random)
    thresholds = _thresholds(deviation)
    words = np.frombuffer(random(8 * count), "<u8")
    return np.searchsorted(thresholds, words, side="right") - len(thresholds) // 2


@functools.lru_cache(maxsize=16)
def _thresholds(deviation: float) -> NDArray[np.uint64]:
    """Return 2**64 times the probability of a number below -most + 1, -most + 2, …, most."""
    most = math.ceil(_TAILS * deviation)
    with localcontext(prec=_DIGITS):
        wide = 2 * Decimal(deviation) ** 2
        half = [(-(Decimal(k) ** 2) / wide).exp() for k in range(1, most + 1)]
        sums = list(itertools.accumulate([*reversed(half), Decimal(1), *half]))
        return np.array([int(each / sums[-1] * 2**64) for each in sums[:-1]], np.uint64)
