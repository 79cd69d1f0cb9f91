"""Noise: the distributions are the right ones, by their tables and by random bytes that are known."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from fl.privacy import noise


def probabilities(deviation: float) -> np.ndarray:
    """Of discrete_normal, for -most to most, as its tables and its sums give them."""
    if deviation <= noise._TABLE:
        bounds = [0, *(int(each) for each in noise._thresholds(deviation)), 2**64]
        return np.array([(after - before) / 2**64 for before, after in itertools.pairwise(bounds)])
    step = math.isqrt(int(deviation / 2))
    one = probabilities(deviation / math.hypot(1, step))
    spread = np.zeros(step * (len(one) - 1) + 1)
    spread[::step] = one
    return np.convolve(one, spread)


@pytest.mark.parametrize("deviation", [0.5, 3.3, 64.0, 65.0, 200.0, 777.7])
def test_the_discrete_normal_distribution(deviation: float) -> None:
    found = probabilities(deviation)
    most = len(found) // 2
    numbers = np.arange(-most, most + 1)
    expected = np.exp(-(numbers**2) / (2 * deviation**2))
    expected /= expected.sum()
    near = np.abs(numbers) < 7 * deviation
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert found[near] == pytest.approx(expected[near], rel=1e-6)
    assert found == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("deviation", [1.0, 50.0, 1e4, 2.0**20])
def test_numbers_have_the_deviation(deviation: float) -> None:
    found = noise.discrete_normal(200_000, deviation, random.Random(1).randbytes)  # the same ones each time
    assert found.dtype == np.int64
    assert found.std() == pytest.approx(deviation, rel=0.01)
    assert abs(found.mean()) < 0.02 * deviation
    assert len(np.unique(found)) > min(4 * deviation, 100_000)


def test_normal_numbers() -> None:
    found = noise.normal(200_001, random.Random(1).randbytes)
    assert found.shape == (200_001,)
    assert found.std() == pytest.approx(1, rel=0.01)
    assert np.mean(found**4) == pytest.approx(3, rel=0.05)
    assert np.mean(found > 1.96) == pytest.approx(0.025, rel=0.05)


@pytest.mark.parametrize("byte", [0x00, 0xFF])
def test_extreme_bytes_give_finite_numbers(byte: int) -> None:
    assert np.isfinite(noise.normal(10, lambda count: bytes([byte]) * count)).all()
    assert np.abs(noise.discrete_normal(10, 1e6, lambda count: bytes([byte]) * count)).max() < 20e6


def test_numbers_of_the_operating_system_differ() -> None:
    assert not np.array_equal(noise.normal(100), noise.normal(100))
    assert not np.array_equal(noise.discrete_normal(100, 1e6), noise.discrete_normal(100, 1e6))
