"""Asynchronous strategies without a server, each against the formula of its paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fl.errors import InvalidUpdate
from fl.messages import Update
from fl.strategies.asynchronous import FedAsync, FedBuff
from fl.strategies.base import polynomial
from fl.tensors.model import copied, difference
from tests.fl.federation import A

START: dict[str, Any] = {
    "w": np.array([1.0, -2.0], np.float32),
    "n": np.array(10),
    "b": np.array([True, False]),
    "t": torch.tensor([4.0], dtype=torch.float16),
}


def moved(by: float, steps: int = 0) -> dict[str, Any]:
    return {
        "w": START["w"] + np.float32(by),
        "n": START["n"] + steps,
        "b": np.array([True, True]),
        "t": START["t"] + by,
    }


def delta(by: float, steps: int = 0) -> dict[str, Any]:
    return difference(moved(by, steps), copied(START))


def test_fedasync_mixes_by_staleness() -> None:
    strategy = FedAsync(0.5, polynomial(1.0))
    strategy.begin(START)
    strategy.fold(START, Update(moved(8), 100), client=A)
    first: Any = strategy.finish(START, number=1)
    assert first["w"].tolist() == [5, 2]
    strategy.fold(first, Update(moved(8), 1), staleness=3, client=A)
    second: Any = strategy.finish(first, number=1)
    assert second["w"].tolist() == [5 + 0.125 * 4, 2 + 0.125 * 4]
    assert strategy.buffer == 1


def test_difference_overwrites_start_and_keeps_other_tensors() -> None:
    start, model = copied(START), moved(3, 2)
    found = difference(model, start)
    assert found["w"] is start["w"]
    assert found["w"].tolist() == [3, 3]
    assert found["n"] is model["n"]
    assert found["b"] is model["b"]
    assert found["t"].tolist() == [3]
    assert model["w"].tolist() == [4, 1]


def test_difference_of_torch_tensors() -> None:
    start: dict[str, Any] = {"w": torch.ones(2)}
    model: dict[str, Any] = {"w": torch.full((2,), 3.0, requires_grad=True)}
    assert difference(model, start)["w"].tolist() == [2, 2]


def test_tensors_of_other_specs_are_unchanged_by_difference() -> None:
    model: dict[str, Any] = {"w": np.ones(3, np.float32), "v": np.ones(2), "n": np.ones(2)}
    found = difference(model, {"w": np.ones(2, np.float32), "n": np.ones(2, np.float32)})
    assert all(found[name] is model[name] for name in model)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_fedbuff_adds_the_mean_change(rate: float) -> None:
    """Algorithm 1: w + rate / K * sum of s(staleness) * change, each change relative to its own start."""
    strategy = FedBuff(size=3, learning_rate=rate, staleness=polynomial(0.5))
    strategy.begin(START)
    now = moved(100, 5)
    for by, staleness, steps in ((6.0, 0, 1), (-3.0, 0, 2), (12.0, 3, 6)):
        strategy.fold(now, Update(delta(by, steps), 7), staleness=staleness, client=A)
    result: Any = strategy.finish(now, number=1)
    change = rate / 3 * (6 - 3 + 0.5 * 12)
    np.testing.assert_allclose(result["w"], now["w"] + change, rtol=1e-6)
    assert result["n"] == 10 + round((1 + 2 + 0.5 * 6) / 2.5)  # integers are averaged
    assert result["b"].tolist() == [True, True]
    assert strategy.buffer == 3


def test_change_that_is_not_finite_is_refused() -> None:
    strategy = FedBuff(size=2)
    strategy.begin(START)
    with pytest.raises(InvalidUpdate, match="'w' holds NaN"):
        strategy.fold(START, Update(delta(float("nan")), 1), client=A)
    strategy.fold(START, Update(delta(2), 1), client=A)
    assert strategy.finish(START, number=1)["w"].tolist() == [3, 0]


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "2"])
def test_buffer_size_out_of_range_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match=r"size: .*; expected a whole number of 1 or more"):
        FedBuff(size=size)


@pytest.mark.parametrize("mixing", [0, 1.5, float("nan")])
def test_mixing_out_of_range_is_refused(mixing: float) -> None:
    with pytest.raises(ValueError, match=r"mixing: .*; expected more than 0, and 1 at most"):
        FedAsync(mixing)


def test_fedbuff_refuses_a_model_without_differences() -> None:
    with pytest.raises(InvalidUpdate, match="FedBuff adds changes, and has none of h; expected one of float16, bf"):
        FedBuff().begin({"w": np.zeros(2), "h": torch.zeros(2).to(torch.float8_e5m2), "n": np.array(1)})


def test_fedbuff_adds_changes_of_bfloat16() -> None:
    def of(value: float) -> dict[str, Any]:
        return {"h": torch.full((2,), value, dtype=torch.bfloat16)}

    strategy, start = FedBuff(2), of(1.0)
    strategy.begin(start)
    for change in (difference(of(2.0), of(1.0)), difference(of(1.5), of(1.0))):
        strategy.fold(start, Update(change, 1), client=A)
    result = strategy.finish(start, number=1)
    assert (result["h"].dtype, result["h"].tolist()) == (torch.bfloat16, [1.75] * 2)


def test_difference_accepts_numpy_and_torch() -> None:
    for make in (np.asarray, torch.tensor):
        start: dict[str, Any] = {"w": make([1.0, 2.0]), "s": np.float64(1)}
        model: dict[str, Any] = {"w": torch.tensor([4.0, 4.0], dtype=torch.float64), "s": np.float64(5)}
        start["w"] = start["w"].astype("f8") if isinstance(start["w"], np.ndarray) else start["w"].double()
        found = difference(model, start)
        assert found["w"].tolist() == [3, 2]
        assert float(found["s"]) == 4
