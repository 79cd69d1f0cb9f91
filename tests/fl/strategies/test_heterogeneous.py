"""Strategies for clients that differ, each against the formula of its paper, computed in float64."""

from __future__ import annotations

import copy
import math
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fl.errors import InvalidUpdate
from fl.messages import Update
from fl.strategies.base import Strategy
from fl.strategies.client_side import ControlVariate
from fl.strategies.heterogeneous import FedNova, QFedAvg, Scaffold
from fl.tensors.model import copied
from tests.fl.federation import A

Arrays = dict[str, NDArray[Any]]
IDS = [uuid.UUID(int=n) for n in range(1, 9)]


def model(seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    return {
        "weight": random.normal(size=(17, 9)).astype(np.float32),
        "bias": random.normal(size=9),
        "steps": np.array(random.integers(1000), np.int64),
    }


def wide(arrays: Mapping[str, Any]) -> Arrays:
    return {name: np.asarray(array, np.float64) for name, array in arrays.items() if name != "steps"}


def folded(strategy: Strategy, start: Mapping[str, Any], updates: list[Update]) -> Any:
    for update in updates:
        strategy.fold(start, update, client=A)
    return strategy.finish(start, number=1)


def assert_close(left: Mapping[str, Any], right: Mapping[str, Any], tolerance: float = 1e-5) -> None:
    for name in right:
        np.testing.assert_allclose(left[name], right[name], rtol=tolerance, atol=tolerance, err_msg=name)


# QFedAvg


def q_fed_avg(start: Mapping[str, Any], updates: list[Update], q: float, rate: float) -> Arrays:
    """Algorithm 2: changes 1/rate * (w - w_k), weighted by F ** q; the step is divided by the sum of h."""
    w, total, h = wide(start), {name: np.zeros_like(array) for name, array in wide(start).items()}, 0.0
    for update in updates:
        loss = update.metrics["loss"]
        change = {name: (w[name] - wide(update.model)[name]) / rate for name in w}
        square = sum(float((array**2).sum()) for array in change.values())
        h += q * loss ** (q - 1) * square + loss**q / rate
        total = {name: total[name] + loss**q * change[name] for name in w}
    return {name: w[name] - total[name] / h for name in w}


@pytest.mark.parametrize("q", [0.0, 0.2, 1.0, 3.0])
def test_qfedavg_matches_algorithm_2(q: float) -> None:
    strategy = QFedAvg(q, learning_rate=0.05)
    strategy.begin(model())
    for first in (1, 10):  # two independent rounds
        updates = [Update(model(seed), 1 + seed, {"loss": 0.1 * seed}) for seed in range(first, first + 5)]
        assert_close(folded(strategy, model(), updates), q_fed_avg(model(), updates, q, 0.05))


def test_largest_q_takes_any_loss() -> None:
    strategy = QFedAvg(30)
    strategy.begin(model())
    least, most = Update(model(1), 1, {"loss": 1e-10}), Update(model(2), 1, {"loss": 1e9})
    perfect = Update(model(1), 1, {"loss": 0.0})
    assert_close(folded(strategy, model(), [perfect]), q_fed_avg(model(), [least], 30, 0.1))
    assert_close(folded(strategy, model(), [perfect, most]), q_fed_avg(model(), [least, most], 30, 0.1))
    with pytest.raises(ValueError, match="q: 31; expected 0 or more, and 30 at most"):
        QFedAvg(31)


def test_larger_loss_weighs_more_with_larger_q() -> None:
    start, near, far = {"w": np.zeros(3)}, {"w": np.full(3, -0.01)}, {"w": np.full(3, 0.01)}
    pulls = []
    for q in (0.0, 1.0, 2.0):
        strategy = QFedAvg(q)
        strategy.begin(start)
        result = folded(strategy, start, [Update(near, 1, {"loss": 1.0}), Update(far, 1, {"loss": 3.0})])
        pulls.append(float(result["w"][0]))
    assert pulls[0] == pytest.approx(0)
    assert pulls[1] > 0
    assert pulls[2] > pulls[1] / 2


@pytest.mark.parametrize(
    ("metrics", "wrong"),
    [
        ({}, "its metrics have no 'loss'"),
        ({"loss": -0.1}, r"metrics\['loss'\] is -0\.1"),
        ({"loss": math.nan}, r"metrics\['loss'\] is nan"),
        ({"loss": [1.0, 2.0]}, r"metrics\['loss'\] is an array or a Sum"),
        ({"loss": math.inf}, r"metrics\['loss'\] is inf"),
        ({"other": 1.0}, "its metrics have no 'loss'"),
    ],
)
def test_qfedavg_refuses_updates_without_loss(metrics: dict[str, Any], wrong: str) -> None:
    strategy = QFedAvg()
    strategy.begin(model())
    strategy.fold(model(), Update(model(1), 1, {"loss": 0.0}), client=A)  # a loss of 0 is valid
    with pytest.raises(InvalidUpdate, match=f"{wrong}; expected a number of 0 or more from every client"):
        strategy.fold(model(), Update(model(2), 1, metrics), client=A)
    assert_close(
        strategy.finish(model(), number=1), q_fed_avg(model(), [Update(model(1), 1, {"loss": 1e-10})], 0.1, 0.1)
    )


# FedNova


def fed_nova(start: Mapping[str, Any], updates: list[Update]) -> Arrays:
    """Equation 6: x + tau_eff * sum of p_i * (x_i - x) / tau_i."""
    w, n = wide(start), sum(update.num_examples for update in updates)
    shares = [update.num_examples / n for update in updates]
    taus = [update.metrics["steps"] for update in updates]
    effective = sum(p * tau for p, tau in zip(shares, taus, strict=True))
    directions = [
        {name: p * (wide(update.model)[name] - w[name]) / tau for name in w}
        for update, p, tau in zip(updates, shares, taus, strict=True)
    ]
    return {name: w[name] + effective * sum(each[name] for each in directions) for name in w}


def test_fednova_matches_equation_6() -> None:
    strategy = FedNova()
    strategy.begin(model())
    for first in (1, 10):
        updates = [Update(model(seed), 1 + seed % 3, {"steps": float(seed**2)}) for seed in range(first, first + 5)]
        assert_close(folded(strategy, model(), updates), fed_nova(model(), updates))


def test_fednova_with_equal_steps_is_the_mean() -> None:
    strategy = FedNova(steps="tau")
    strategy.begin(model())
    result = folded(strategy, model(), [Update(model(seed), 1, {"tau": 7.0}) for seed in (1, 2)])
    assert_close(result, {name: (array + wide(model(2))[name]) / 2 for name, array in wide(model(1)).items()})


def test_fednova_refuses_updates_without_steps() -> None:
    strategy = FedNova()
    strategy.begin(model())
    with pytest.raises(InvalidUpdate, match=r"metrics\['steps'\] is 0; expected a number of 1 or more"):
        strategy.fold(model(), Update(model(2), 1, {"steps": 0.0}), client=A)


# SCAFFOLD, on a problem where FedAvg with many local steps fails: quadratic losses of different curvature

BENDS = np.array([[1.0, 30.0], [30.0, 1.0]])  # curvatures of each client's loss, sum of bend * (w - center) ** 2 / 2
CENTERS = np.array([[4.0, 0.0], [0.0, 2.0]])
BEST = (BENDS * CENTERS).sum(0) / BENDS.sum(0)  # the minimum of the mean loss
RATE, STEPS = 0.02, 20


def rounds(strategy: Strategy, count: int) -> NDArray[Any]:
    """Run a federation of the two clients in one process."""
    current: Any = {"w": np.zeros(2)}
    strategy.begin(current)
    controls = [ControlVariate({}), ControlVariate({})]
    for number in range(1, count + 1):
        strategy.select(number, IDS[:2])
        config = strategy.config(number)
        for bend, center, control in zip(BENDS, CENTERS, controls, strict=True):
            local = copied(current)
            if "control" in config:
                control.begin(local, config)
            for _ in range(STEPS):
                gradient = bend * (local["w"] - center)
                local["w"] -= RATE * (gradient + (control.correction("w") if "control" in config else 0))
            extra = control.finish(local, STEPS, RATE) if "control" in config else {}
            strategy.fold(current, Update(local, 1, {"steps": float(STEPS)}, extra), client=A)
        current = strategy.finish(current, number=1)
    result: NDArray[Any] = current["w"]
    return result


def test_scaffold_converges_where_fedavg_does_not() -> None:
    assert np.abs(rounds(FedNova(), 200) - BEST).max() > 0.3
    assert np.abs(rounds(Scaffold(), 200) - BEST).max() < 1e-3


def test_control_variate_is_the_mean_of_the_clients_changes() -> None:
    """Algorithm 1, line 17: c + sum of the clients' changes / N, where N counts all clients, not the selected ones."""
    start, strategy = model(), Scaffold(learning_rate=0.5)
    strategy.begin(start)
    strategy.select(1, IDS)  # eight are connected, three are folded
    changes = [{name: wide(model(seed))[name].astype(start[name].dtype) for name in wide(start)} for seed in (5, 6, 7)]
    updates = [Update(model(seed), 1, {}, change) for seed, change in zip((1, 2, 3), changes, strict=True)]
    result = folded(strategy, start, updates)
    control = strategy.config(2)["control"]
    assert set(control) == {"weight", "bias"}
    assert_close(control, {name: sum(wide(change)[name] for change in changes) / 8 for name in wide(start)})
    means = {name: sum(wide(update.model)[name] for update in updates) / 3 for name in wide(start)}
    assert_close(result, {name: (array + means[name]) / 2 for name, array in wide(start).items()})


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        ({}, "'weight' is missing"),
        ({"weight": np.zeros((17, 9), "f4"), "bias": np.full(9, np.nan)}, "'bias' holds NaN"),
        ({"weight": np.zeros((17, 9), "f4"), "bias": np.zeros(9), "steps": np.array(1)}, "'steps' is unexpected"),
    ],
)
def test_update_with_a_bad_variate_is_refused(extra: Arrays, match: str) -> None:
    strategy = Scaffold()
    strategy.begin(model())
    with pytest.raises(InvalidUpdate, match=match):
        strategy.fold(model(), Update(model(1), 1, {}, extra), client=A)
    good = {name: np.zeros_like(array) for name, array in model().items() if name != "steps"}
    assert_close(folded(strategy, model(), [Update(model(2), 1, {}, good)]), model(2))


def test_scaffold_continues_from_its_state() -> None:
    start, one, other = model(), Scaffold(), Scaffold()
    one.begin(start)
    extra = {name: array * 0.1 for name, array in model(9).items() if name != "steps"}
    folded(one, start, [Update(model(1), 1, {}, extra)])
    other.restore(copy.deepcopy(one.state()))
    other.begin(start)
    assert_close(other.config(2)["control"], one.config(2)["control"], 0)
    assert np.abs(one.config(2)["control"]["bias"]).max() > 0
