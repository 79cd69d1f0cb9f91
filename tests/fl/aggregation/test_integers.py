"""Tests of fl/aggregation/integers.py, and of the strategies that use it."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fl
from fl.aggregation import integers

DTYPES = ("int64", "uint64")
A = uuid.UUID(int=1)
STRATEGIES = [fl.FedAvg(), fl.FedMedian(), fl.FedTrimmedAvg(), fl.Krum(), fl.MultiKrum(), fl.Bulyan()]


def within(dtype: str) -> st.SearchStrategy[int]:
    return st.integers(np.iinfo(dtype).min, np.iinfo(dtype).max)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_base_plus_difference_is_the_value(dtype: str, data: st.DataObject) -> None:
    value, base = data.draw(within(dtype)), data.draw(within(dtype))
    arrays = np.array([value], dtype), np.array([base], dtype)
    found = integers.add(arrays[1], integers.difference(*arrays)).tolist()[0]
    assert found == value if abs(value - base) < 2**53 else abs(found - value) <= abs(value - base) * 2**-51


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_a_sum_beyond_the_range_is_the_bound(dtype: str, data: st.DataObject) -> None:
    base = np.array([data.draw(within(dtype))], dtype)
    lowest, highest = (integers.add(base, np.array([change])).tolist()[0] for change in (-1e30, 1e30))
    bounds = np.iinfo(dtype)
    assert bounds.min <= lowest <= bounds.min + 2**12
    assert bounds.max - 2**12 <= highest <= bounds.max


@pytest.mark.parametrize(("change", "expected"), [(0.5, 10), (1.5, 12), (0.51, 11), (-0.5, 10), (-1.5, 8)])
def test_halves_are_rounded_to_even(change: float, expected: int) -> None:
    assert integers.add(np.array([10]), np.array([change])).tolist() == [expected]


@pytest.mark.parametrize("value", [2**62 + 12345, 2**63 - 1, -(2**63), 2**53 + 1])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: type(each).__name__)
def test_the_mean_of_equal_integers_is_that_integer(strategy: fl.Strategy, value: int) -> None:
    model: dict[str, Any] = {"seed": np.array([value]), "large": np.array(2**64 - 1, np.uint64), "w": np.zeros(2)}
    strategy.begin(model)
    for number in range(7):
        strategy.fold(model, fl.Update({**model, "w": np.full(2, number / 7)}, 1 + number), client=A)
    result = strategy.finish(model, number=1)
    assert result["seed"].tolist() == [value]
    assert result["large"] == 2**64 - 1


def test_the_mean_of_large_integers_lies_between_them() -> None:
    mean = fl.WeightedMean({"n": np.array([0])})
    for value in (2**62, 2**62 + 2, 2**62 + 4):
        mean.fold({"n": np.array([value])}, 1.0)
    assert mean.finish()["n"].tolist() == [2**62 + 2]
