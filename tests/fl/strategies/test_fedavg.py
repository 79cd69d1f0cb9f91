"""FedAvg and its variants without a server: each against the formula of its paper, computed in float64."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fl.config.strategy import STRATEGIES
from fl.errors import CheckpointError
from fl.messages import Update
from fl.strategies.base import Strategy, polynomial
from fl.strategies.fedavg import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi
from fl.strategies.server_optimizers import Momentum
from tests.fl.federation import A

Arrays = dict[str, NDArray[Any]]


def model(seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    return {
        "weight": random.normal(size=(17, 9)).astype(np.float32),
        "bias": random.normal(size=9),
        "steps": np.array(random.integers(1000), np.int64),
    }


def update(seed: int) -> Update:
    return Update(model(seed), 1 + seed * 37 % 101)


def mean(updates: list[Update]) -> Arrays:
    """FedAvg as the paper writes it, in float64."""
    weights = np.array([each.num_examples for each in updates], np.float64)
    stacks = {name: np.stack([each.model[name] for each in updates]).astype(np.float64) for name in updates[0].model}
    return {name: np.tensordot(weights / weights.sum(), stack, 1) for name, stack in stacks.items()}


def begun(strategy: Strategy, start: Mapping[str, Any]) -> Strategy:
    strategy.begin(start)
    return strategy


def folded(strategy: Strategy, start: Mapping[str, Any], updates: list[Update]) -> Any:
    for each in updates:
        strategy.fold(start, each, client=A)
    return strategy.finish(start, number=1)


def assert_close(left: Mapping[str, Any], right: Mapping[str, Any], tolerance: float) -> None:
    assert left.keys() == right.keys()
    for name in left:
        atol = tolerance if left[name].dtype.kind == "f" else 0.5
        np.testing.assert_allclose(left[name], right[name], rtol=tolerance, atol=atol, err_msg=name)


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_fedavg_weights_by_number_of_examples(count: int) -> None:
    updates = [update(seed) for seed in range(1, count + 1)]
    result = folded(begun(FedAvg(), model()), model(), updates)
    assert_close(result, mean(updates), 1e-6)
    assert {name: (array.dtype, array.shape) for name, array in result.items()} == {
        name: (array.dtype, array.shape) for name, array in model().items()
    }


def test_order_of_updates_changes_rounding_only() -> None:
    updates = [update(seed) for seed in range(5)]
    expected = mean(updates)
    for order in itertools.permutations(updates):
        assert_close(folded(begun(FedAvg(), model()), model(), list(order)), expected, 1e-6)


def test_rounds_are_independent() -> None:
    strategy, updates = begun(FedAvg(), model()), [update(seed) for seed in range(4)]
    first = folded(strategy, model(), updates[:2])
    second = folded(strategy, first, updates[2:])
    assert_close(second, mean(updates[2:]), 1e-6)
    assert_close(first, mean(updates[:2]), 1e-6)  # no working memory of the strategy


def test_fold_keeps_no_reference_to_the_update() -> None:
    strategy, first = begun(FedAvg(), model()), update(1)
    strategy.fold(model(), first, client=A)
    for array in first.model.values():
        array[...] = 99
    assert_close(strategy.finish(model(), number=1), update(1).model, 0)


def test_torch_model_stays_torch_with_numpy_updates() -> None:
    start = {"w": torch.zeros(3), "n": torch.tensor(0), "h": torch.zeros(2, dtype=torch.bfloat16)}
    strategy = begun(FedAvg(), start)
    strategy.fold(start, Update({"w": torch.ones(3), "n": torch.tensor(4), "h": start["h"] + 1}, 1), client=A)
    strategy.fold(start, Update({"w": np.full(3, 3, np.float32), "n": np.array(8), "h": start["h"] + 3}, 1), client=A)
    result: Any = strategy.finish(start, number=1)
    assert torch.equal(result["w"], torch.full((3,), 2.0))
    assert torch.equal(result["n"], torch.tensor(6))
    assert torch.equal(result["h"], torch.full((2,), 2.0, dtype=torch.bfloat16))


def test_late_update_weighs_less() -> None:
    strategy = begun(FedAvg(staleness=polynomial(1)), model())
    strategy.fold(model(), Update(model(1), 10), client=A)
    strategy.fold(model(), Update(model(2), 40), staleness=3, client=A)
    assert_close(strategy.finish(model(), number=1), mean([Update(model(1), 10), Update(model(2), 10)]), 1e-6)


def test_fedprox_is_fedavg_with_mu_in_the_config() -> None:
    updates = [update(seed) for seed in range(5)]
    strategy = begun(FedProx(0.3, config={"rate": 0.1}), model())
    assert strategy.config(1) == {"rate": 0.1, "proximal_mu": 0.3}
    assert_close(folded(strategy, model(), updates), mean(updates), 1e-6)


# Optimizers at the server: three rounds, each from the model before it


def momentum(change: Arrays, state: dict[str, Arrays], name: str) -> Any:
    velocity = 0.9 * state.setdefault("velocity", {}).get(name, 0) + change[name]
    state["velocity"][name] = velocity
    return 0.7 * velocity


def adaptive(second: Callable[[Any, Any], Any], rate: float, beta_1: float) -> Callable[..., Any]:
    def step(change: Arrays, state: dict[str, Arrays], name: str) -> Any:
        m = beta_1 * state.setdefault("m", {}).get(name, 0) + (1 - beta_1) * change[name]
        v = second(state.setdefault("v", {}).get(name, np.full_like(change[name], 0.02**2)), change[name] ** 2)
        state["m"][name], state["v"][name] = m, v
        return rate * m / (np.sqrt(v) + 0.02)

    return step


OPTIMIZERS: dict[str, tuple[Callable[[], FedAvg], Callable[..., Any]]] = {
    "FedAvgM": (lambda: FedAvgM(0.7, 0.9), momentum),
    "FedAdagrad": (lambda: FedAdagrad(0.1, 0.5, 0.02), adaptive(lambda v, square: v + square, 0.1, 0.5)),
    "FedAdam": (lambda: FedAdam(0.1, 0.9, 0.99, 0.02), adaptive(lambda v, square: 0.99 * v + 0.01 * square, 0.1, 0.9)),
    "FedYogi": (
        lambda: FedYogi(0.05, 0.8, 0.9, 0.02),
        adaptive(lambda v, square: v - 0.1 * square * np.sign(v - square), 0.05, 0.8),
    ),
}


def test_optimizers_have_every_variant_of_fedavg() -> None:
    variants = {name for name, kind in STRATEGIES.items() if issubclass(kind, FedAvg)}
    assert set(OPTIMIZERS) == variants - {"FedAvg", "FedProx"}  # their model is the mean


@pytest.mark.parametrize(("make", "step"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizer_matches_its_paper(make: Callable[[], FedAvg], step: Callable[..., Any]) -> None:
    current, expected, state = (
        model(),
        {name: array.astype("f8") for name, array in model().items()},
        dict[str, Arrays](),
    )
    strategy = begun(make(), current)
    for number in range(3):
        updates = [update(seed) for seed in range(10 * number, 10 * number + 4)]
        change = {name: array - expected[name] for name, array in mean(updates).items()}
        for name in ("weight", "bias"):
            expected[name] = expected[name] + step(change, state, name)
        expected["steps"] = np.rint(mean(updates)["steps"])  # integers are averaged without a step
        current = folded(strategy, current, updates)
        assert_close(current, expected, 1e-5)
        assert {name: array.dtype for name, array in current.items()} == {
            name: array.dtype for name, array in model().items()
        }


@pytest.mark.parametrize("make", [make for make, _ in OPTIMIZERS.values()], ids=OPTIMIZERS)
def test_optimizer_continues_from_its_state(make: Callable[[], FedAvg]) -> None:
    one = begun(make(), model())
    after = folded(one, model(), [update(1), update(2)])
    other = begun(make(), model())
    other.restore(copy.deepcopy(one.state()))
    rounds = [folded(strategy, after, [update(3), update(4)]) for strategy in (one, other)]
    assert_close(rounds[0], rounds[1], 0)
    fresh = folded(begun(make(), model()), after, [update(3), update(4)])
    assert any((fresh[name] != rounds[0][name]).any() for name in fresh), "the state makes a difference"


@pytest.mark.parametrize("adaptivity", [1e-30, 1e18])
def test_extreme_adaptivity_is_finite_in_float32(adaptivity: float) -> None:
    start = {"w": np.zeros(3, np.float32)}
    strategy = begun(FedAdam(adaptivity=adaptivity), start)
    strategy.fold(start, Update({"w": np.array([0, 1, -1], np.float32)}, 1), client=A)
    result = np.asarray(strategy.finish(start, number=1)["w"])
    assert np.sign(result).tolist() == [0, 1, -1]
    assert np.isfinite(result).all()


def test_state_without_an_optimizer_is_refused() -> None:
    state = begun(FedAvg(optimizer=Momentum()), model()).state()
    with pytest.raises(CheckpointError, match="there is velocity, and this FedAvg has no optimizer for it; give"):
        begun(FedAvg(), model()).restore(state)
    with pytest.raises(KeyError, match="first"):
        begun(FedAdam(), model()).restore(state)
    begun(FedAvg(), model()).restore(begun(FedAvg(), model()).state())


def test_optimizer_takes_torch_tensors_of_half_precision() -> None:
    start = {"w": torch.zeros(4, dtype=torch.bfloat16), "n": torch.tensor(3)}
    strategy = begun(FedAvgM(1.0, 0.5), start)
    trained = {"w": torch.ones(4, dtype=torch.bfloat16), "n": torch.tensor(5)}
    first = folded(strategy, start, [Update(trained, 1)])
    second: Any = folded(strategy, first, [Update(first, 1)])
    assert torch.equal(second["w"], torch.full((4,), 1.5, dtype=torch.bfloat16))
    assert second["n"] == 5


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: FedAvgM(learning_rate=0), "learning_rate"),
        (lambda: FedAvgM(momentum=1.5), "momentum"),
        (lambda: FedAdam(beta_1=-0.1), "beta_1"),
        (lambda: FedAdam(beta_2=float("nan")), "beta_2"),
        (lambda: FedYogi(beta_2=2), "beta_2"),
        (lambda: FedAdagrad(adaptivity=0), "adaptivity"),
        (lambda: FedAdam(adaptivity=1e308), "adaptivity"),  # its square overflows
        (lambda: FedYogi(adaptivity=1e-320), "adaptivity"),
        (lambda: FedProx(mu=-1), "mu"),
    ],
)
def test_options_out_of_range_are_refused(make: Callable[[], FedAvg], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: .*; expected"):
        make()
