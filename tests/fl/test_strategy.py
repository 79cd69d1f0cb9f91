"""FedAvg as a pure object: whom it draws, and that its mean is the mean."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fl.aggregate import InvalidUpdate
from fl.messages import Update
from fl.strategy import FedAvg, Strategy

IDS = [uuid.UUID(int=n) for n in range(1, 21)]


def model(seed: int = 0) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(seed)
    return {
        "weight": random.normal(size=(17, 9)).astype(np.float32),
        "bias": random.normal(size=9),
        "steps": np.array(random.integers(1000), np.int64),
    }


def update(seed: int) -> Update:
    return Update(model(seed), 1 + seed * 37 % 101)


def mean(updates: list[Update]) -> dict[str, NDArray[Any]]:
    """FedAvg as the paper writes it, in float64."""
    weights = np.array([each.num_examples for each in updates], np.float64)
    stacks = {name: np.stack([each.model[name] for each in updates]).astype(np.float64) for name in updates[0].model}
    return {name: np.tensordot(weights / weights.sum(), stack, 1) for name, stack in stacks.items()}


def folded(strategy: Strategy, start: Mapping[str, Any], updates: list[Update]) -> Any:
    for each in updates:
        strategy.fold(start, each)
    return strategy.finish(start)


def assert_close(left: Mapping[str, Any], right: Mapping[str, Any], tolerance: float) -> None:
    assert left.keys() == right.keys()
    for name in left:
        atol = tolerance if left[name].dtype.kind == "f" else 0.5
        np.testing.assert_allclose(left[name], right[name], rtol=tolerance, atol=atol, err_msg=name)


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_fedavg_is_the_mean_by_numbers_of_examples(count: int) -> None:
    updates = [update(seed) for seed in range(1, count + 1)]
    result = folded(FedAvg(), model(), updates)
    assert_close(result, mean(updates), 1e-6)
    assert {name: (array.dtype, array.shape) for name, array in result.items()} == {
        name: (array.dtype, array.shape) for name, array in model().items()
    }


def test_the_order_of_updates_changes_nothing_but_rounding() -> None:
    updates = [update(seed) for seed in range(5)]
    expected = mean(updates)
    for order in itertools.permutations(updates):
        assert_close(folded(FedAvg(), model(), list(order)), expected, 1e-6)


def test_a_round_knows_nothing_of_the_round_before() -> None:
    strategy, updates = FedAvg(), [update(seed) for seed in range(4)]
    first = folded(strategy, model(), updates[:2])
    second = folded(strategy, first, updates[2:])
    assert_close(second, mean(updates[2:]), 1e-6)
    assert_close(first, mean(updates[:2]), 1e-6)  # it is nobody's working memory


def test_an_abandoned_round_leaves_no_trace() -> None:
    strategy = FedAvg()
    strategy.abandon()
    strategy.fold(model(), update(1))
    strategy.abandon()
    assert_close(folded(strategy, model(), [update(2)]), update(2).model, 0)


def test_a_refused_update_leaves_no_trace() -> None:
    strategy, bad = FedAvg(), model(3)
    bad["bias"][-1] = np.nan  # the last that is looked at, but for one
    strategy.fold(model(), update(1))
    with pytest.raises(InvalidUpdate, match="'bias' holds NaN"):
        strategy.fold(model(), Update(bad, 10))
    strategy.fold(model(), update(2))
    assert_close(strategy.finish(model()), mean([update(1), update(2)]), 1e-6)


def test_an_update_is_the_callers_again() -> None:
    strategy, first = FedAvg(), update(1)
    strategy.fold(model(), first)
    for array in first.model.values():
        array[...] = 99
    assert_close(strategy.finish(model()), update(1).model, 0)


def test_torch_stays_torch_whoever_trains() -> None:
    start = {"w": torch.zeros(3), "n": torch.tensor(0), "h": torch.zeros(2, dtype=torch.bfloat16)}
    strategy = FedAvg()
    strategy.fold(start, Update({"w": torch.ones(3), "n": torch.tensor(4), "h": start["h"] + 1}, 1))
    strategy.fold(start, Update({"w": np.full(3, 3, np.float32), "n": np.array(8), "h": start["h"] + 3}, 1))
    result: Any = strategy.finish(start)
    assert torch.equal(result["w"], torch.full((3,), 2.0))
    assert torch.equal(result["n"], torch.tensor(6))
    assert torch.equal(result["h"], torch.full((2,), 2.0, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    ("fraction", "clients", "expected"), [(1.0, 20, 20), (0.5, 20, 10), (0.1, 20, 2), (0.01, 20, 1), (0.3, 1, 1)]
)
def test_the_fraction_is_drawn(fraction: float, clients: int, expected: int) -> None:
    drawn = FedAvg(fraction).select(1, IDS[:clients])
    assert len(drawn) == len(set(drawn)) == expected
    assert set(drawn) <= set(IDS[:clients])


def test_the_draw_depends_on_seed_and_round_only() -> None:
    def draws(seed: int, clients: list[uuid.UUID]) -> list[Any]:
        strategy = FedAvg(0.25, seed=seed)
        return [strategy.select(number, clients) for number in range(1, 50)]

    assert draws(1, IDS) == draws(1, IDS[::-1])
    assert draws(1, IDS) != draws(2, IDS)
    assert {id for draw in draws(1, IDS) for id in draw} == set(IDS)  # each has its turn
    assert FedAvg(0.25, seed=1).select(7, IDS) == draws(1, IDS)[6]  # whatever was drawn before


@pytest.mark.parametrize("fraction", [0, -0.5, 1.01, float("nan"), float("inf")])
def test_a_fraction_is_above_0_and_1_at_most(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"FedAvg\.fraction: .*expected more than 0, and 1 at most"):
        FedAvg(fraction)


def test_the_config_is_the_same_in_every_round_and_no_longer_the_callers() -> None:
    config = {"rate": 0.1}
    strategy = FedAvg(config=config)
    config["rate"] = 99
    assert strategy.config(1) == strategy.config(2) == {"rate": 0.1}
    assert FedAvg().config(1) == {}
