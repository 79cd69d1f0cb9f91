"""Tests of fl/server/aggregation.py: each strategy, with tensors of all roles."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fl
from fl.compression.compressor import Compressor
from fl.config.strategy import STRATEGIES
from fl.messages import with_fields
from fl.server.aggregation import Aggregation
from fl.tensors.roles import assign

A = uuid.UUID(int=1)
STEPPED = [name for name in STRATEGIES if "averaged" not in STRATEGIES[name]().roles]


def f4(*values: float) -> Any:
    return np.array(values, np.float32)


def model() -> dict[str, Any]:
    return {
        "w": f4(0, 0, 0),
        "bn.running_var": f4(1, 4),
        "bn.running_mean": f4(-1, 1),
        "mask": f4(0, -np.inf),
        "steps": np.array([2**62 + 1]),
        "u": f4(1, 0),
    }


ROLES = assign({**model(), "head": f4(0)}, {"u": "unit", "head": "local"})


def update(value: float, **others: Any) -> fl.Update:
    """Return an update whose statistics are those of the model, but for the variance."""
    tensors = {**model(), "w": f4(value, value, value), "bn.running_var": f4(value, value), **others}
    return fl.Update(tensors, int(10 * value), {"loss": 0.5, "steps": 1 + 9 * value}, {"w": f4(0, 0, 0)})


def folded(strategy: fl.Strategy, *updates: fl.Update) -> Aggregation:
    aggregation = Aggregation(strategy, model(), ROLES)
    strategy.select(1, [A])
    for each in updates:
        if strategy.deltas:
            each = with_fields(each, model={**each.model, "w": each.model["w"] - model()["w"]})
        aggregation.fold(model(), each, A, 0)
    return aggregation


@pytest.mark.parametrize("name", STEPPED)
def test_statistics_take_the_plain_mean_under_each_strategy(name: str) -> None:
    result = folded(STRATEGIES[name](), *(update(value) for value in (0.1, 0.1, 0.1, 0.4))).finish(model(), 1)
    np.testing.assert_allclose(result["bn.running_var"], (3 * 0.1 + 4 * 0.4) / 7, rtol=1e-6)


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_equal_at_all_clients_stays_equal(name: str) -> None:
    result = folded(STRATEGIES[name](), *(update(0.5) for _ in range(7))).finish(model(), 1)
    for same in ("bn.running_mean", "mask", "steps", "u"):
        assert result[same].tolist() == model()[same].tolist()
    assert list(result) == list(model())


@pytest.mark.parametrize("name", STRATEGIES)
def test_variances_stay_between_those_of_the_clients(name: str) -> None:
    result = folded(STRATEGIES[name](), *(update(value) for value in (0.1, 0.2, 0.3, 0.9, 0.2, 0.1, 0.1)))
    variance = result.finish(model(), 1)["bn.running_var"]
    assert (variance >= f4(0.1, 0.1)).all()
    assert (variance <= model()["bn.running_var"]).all()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"head": f4(1)}, "'head' is local, and has come; expected an update without it"),
        ({"mask": f4(0, 0)}, "'mask' is constant, and has changed; expected the value that the client got"),
        ({"mask": f4(0)}, "'mask' is constant, and has changed"),
        ({"other": f4(1)}, "'other' is unexpected; expected the model's 5 names only"),
        ({"bn.running_var": f4(np.nan, 1)}, r"'bn\.running_var' holds NaN or infinity"),
        ({"bn.running_var": np.ones(2)}, r"'bn\.running_var' is float64 of shape \(2,\); expected float32"),
        ({"w": f4(np.inf, 0, 0)}, "'w' holds NaN or infinity"),
    ],
)
@pytest.mark.parametrize("make", [fl.FedAvg, fl.FedMedian, fl.FedAdam, fl.FedAsync])
def test_a_bad_update_is_refused_and_changes_nothing(
    make: Callable[[], fl.Strategy], change: dict[str, Any], error: str
) -> None:
    aggregation = folded(make(), update(0.5))
    with pytest.raises(fl.InvalidUpdate, match=error):
        aggregation.fold(model(), update(9, **change), A, 0)
    expected = folded(make(), update(0.5)).finish(model(), 1)
    result = aggregation.finish(model(), 1)
    assert {name: each.tolist() for name, each in result.items()} == {k: v.tolist() for k, v in expected.items()}


def test_an_update_may_leave_constants_out() -> None:
    each = update(0.5)
    del each.model["mask"]
    assert folded(fl.FedAvg(), each).finish(model(), 1)["mask"].tolist() == [0, -np.inf]


@pytest.mark.parametrize("name", ["bn.running_var", "mask"])
def test_a_packed_statistic_or_constant_is_refused(name: str) -> None:
    start = {name: f4(0, 0)}
    packed = Compressor(fl.Compression("int8")).pack({name: f4(0, 1)}, start)
    with pytest.raises(fl.InvalidUpdate, match=name):
        folded(fl.FedAvg(), update(0.5, **packed))


def test_the_mean_of_unit_vectors_has_length_1() -> None:
    found = folded(fl.FedAvg(), update(1, u=f4(1, 0)), update(1, u=f4(0, 1))).finish(model(), 1)["u"]
    np.testing.assert_allclose(found, [0.5**0.5] * 2, rtol=1e-6)
    opposite = folded(fl.FedAvg(), update(1, u=f4(0, 1)), update(1, u=f4(0, -1))).finish(model(), 1)["u"]
    assert opposite.tolist() == model()["u"].tolist()


def test_one_client_cannot_move_the_statistics_of_a_robust_strategy() -> None:
    updates = [*(update(0.5) for _ in range(6)), update(0.5, **{"bn.running_mean": f4(1e30, 1e30)})]
    for make in (fl.FedMedian, fl.FedTrimmedAvg, fl.Krum, fl.MultiKrum, fl.Bulyan, fl.GeometricMedian):
        found = folded(make(), *updates).finish(model(), 1)["bn.running_mean"]
        np.testing.assert_allclose(found, [-1, 1], rtol=1e-3)


def test_an_abandoned_round_leaves_no_statistics() -> None:
    aggregation = folded(fl.FedAvg(), update(0.1))
    aggregation.abandon()
    aggregation.fold(model(), update(0.9), A, 0)
    assert aggregation.finish(model(), 1)["bn.running_var"].tolist() == f4(0.9, 0.9).tolist()


def test_a_result_that_is_not_finite_is_refused() -> None:
    class Diverging(fl.FedAvg):
        def finish(self, model: Any, *, number: int) -> Any:
            return {name: tensor * np.inf for name, tensor in super().finish(model, number=number).items()}

    with (
        np.errstate(invalid="ignore"),
        pytest.raises(fl.InvalidUpdate, match="what Diverging came to is no model: 'w' holds NaN"),
    ):
        folded(Diverging(), update(0.5)).finish(model(), 1)


def test_a_strategy_may_ask_for_statistics() -> None:
    class Greedy(fl.FedAvg):
        roles = ("trained", "averaged", "constant")

        def begin(self, model: Any) -> None:
            self.names = set(model)
            super().begin(model)

    strategy = Greedy()
    Aggregation(strategy, model(), ROLES)
    assert strategy.names == {"w", "bn.running_var", "bn.running_mean", "steps"}
