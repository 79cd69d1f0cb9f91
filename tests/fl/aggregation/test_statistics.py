"""Tests of fl/aggregation/statistics.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fl
from fl.aggregation.statistics import Statistics

INF = np.inf


def mean(start: Any, *updates: tuple[Any, float]) -> Any:
    model = {"s": start}
    statistics = Statistics(["s"])
    for value, weight in updates:
        statistics.fold(statistics.read(model, {"s": value, "w": None}), weight)
    return statistics.finish(model)["s"]


def f4(*values: float) -> Any:
    return np.array(values, np.float32)


def test_it_is_the_mean_by_weight() -> None:
    assert mean(f4(9), (f4(1), 1), (f4(4), 2)).tolist() == [3]
    assert mean(f4(9), (f4(0.1), 3), (f4(0.1), 7)) == f4(0.1)


def test_without_an_update_it_is_the_value_of_the_model() -> None:
    assert mean(f4(9)).tolist() == [9]
    assert mean(f4(9), (f4(1), 0.0)).tolist() == [9]


def test_what_is_still_infinite_is_left_out_of_the_mean() -> None:
    start = f4(INF, -INF, 1, INF)
    found = mean(start, (f4(-2, -INF, 3, INF), 1), (f4(INF, -INF, 3, INF), 5), (f4(-4, 8, 3, INF), 1))
    assert found.tolist() == [-3, 8, 3, INF]
    assert found.dtype == np.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_infinities_of_torch_keep_their_dtype(dtype: torch.dtype) -> None:
    start = torch.tensor([[INF, 0.5]], dtype=dtype)
    found = mean(start, (torch.tensor([[2.0, 0.5]], dtype=dtype), 1), (torch.tensor([[4.0, 0.5]], dtype=dtype), 1))
    assert found.dtype == dtype
    assert found.tolist() == [[3.0, 0.5]]


@pytest.mark.parametrize("value", [f4(np.nan, 1), f4(INF, 1), f4(1, INF), f4(-INF, INF)])
@pytest.mark.parametrize("start", [f4(1, 1), f4(1, -INF)])
def test_nan_and_unexpected_infinity_are_refused(start: Any, value: Any) -> None:
    statistics = Statistics(["s"])
    statistics.fold(statistics.read({"s": start}, {"s": f4(5, 7)}), 1)
    with pytest.raises(fl.InvalidUpdate, match=r"'s' holds NaN"):
        statistics.read({"s": start}, {"s": value})
    assert statistics.finish({"s": start})["s"].tolist() == [5, 7]


@pytest.mark.parametrize("value", [f4(1, 2, 3), np.ones(2), None])
def test_other_shapes_and_dtypes_are_refused(value: Any) -> None:
    with pytest.raises(fl.InvalidUpdate, match="'s'"):
        Statistics(["s"]).read({"s": f4(1, 1)}, {"s": value})


def test_a_missing_statistic_is_refused() -> None:
    with pytest.raises(fl.InvalidUpdate, match=r"'s' is missing; expected float32 of shape \(2,\)"):
        Statistics(["s"]).read({"s": f4(1, 1)}, {})


def test_a_round_can_be_abandoned() -> None:
    statistics, model = Statistics(["s"]), {"s": f4(INF)}
    statistics.fold(statistics.read(model, {"s": f4(3)}), 1)
    statistics.reset()
    statistics.fold(statistics.read(model, {"s": f4(5)}), 1)
    assert statistics.finish(model)["s"].tolist() == [5]
