"""What holds for every strategy of fl. A new strategy is tested here without a change of this file."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fl
from fl.config.strategy import STRATEGIES
from tests.fl.federation import IDS

COUNT = 8  # updates of a round, for a strategy that needs no more
START: dict[str, Any] = {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "b": np.zeros(3)}

every_strategy = pytest.mark.parametrize("name", STRATEGIES)


def begun(name: str, state: Any = None, **options: Any) -> fl.Strategy:
    strategy = STRATEGIES[name](**options)
    if state is not None:
        strategy.restore(state)
    strategy.begin(START)
    return strategy


def update(seed: int) -> fl.Update:
    """An update with all that some strategy wants: metrics, and the change of a control variate."""
    random = np.random.default_rng(seed)
    model, extra = [
        {name: random.normal(size=tensor.shape).astype(tensor.dtype) for name, tensor in START.items()}
        for _ in range(2)
    ]
    return fl.Update(model, 1 + seed, {"loss": 1.0 + seed, "steps": 2.0}, extra)


def fold(strategy: fl.Strategy, seed: int) -> None:
    for each in range(strategy.buffer or max(COUNT, strategy.least)):
        strategy.fold(START, update(seed + each), client=IDS[each % len(IDS)], staleness=0)


def round(strategy: fl.Strategy, seed: int = 1) -> dict[str, Any]:
    strategy.select(1, IDS)
    fold(strategy, seed)
    model = strategy.finish(START, number=1)
    return {name: np.array(tensor).tolist() for name, tensor in model.items()}


@every_strategy
def test_round_returns_a_model_of_the_same_specs(name: str) -> None:
    model = begun(name)
    fold(model, 1)
    result: Any = model.finish(START, number=1)
    assert result.keys() == START.keys()
    for key, tensor in result.items():
        assert (tensor.shape, tensor.dtype) == (START[key].shape, START[key].dtype)
        assert np.isfinite(tensor).all()
        assert not np.array_equal(tensor, START[key])


@every_strategy
def test_abandoned_round_leaves_no_trace(name: str) -> None:
    strategy = begun(name)
    strategy.abandon()
    fold(strategy, 50)
    strategy.abandon()
    assert round(strategy) == round(begun(name))


@every_strategy
def test_refused_update_leaves_no_trace(name: str) -> None:
    strategy, other, bad = begun(name), begun(name), update(9)
    for each in (strategy, other):
        each.fold(START, update(50), client=IDS[0])
    bad.model["b"][-1] = np.nan  # in the last tensor: nothing is folded before all of the update is checked
    with pytest.raises(fl.InvalidUpdate, match="'b' holds NaN"):
        strategy.fold(START, bad, client=IDS[1])
    assert round(strategy) == round(other)


@every_strategy
def test_rejected_model_resets_the_state(name: str) -> None:
    strategy = begun(name)
    round(strategy)
    strategy.reject()
    assert round(strategy) == round(begun(name))


@every_strategy
def test_restored_state_continues_bit_for_bit(name: str) -> None:
    strategy = begun(name)
    round(strategy)
    options = fl.serialization()
    state = options.load(options.dump(dict(strategy.state())))
    assert round(begun(name, state), 30) == round(strategy, 30)


@every_strategy
def test_common_options_are_accepted(name: str) -> None:
    strategy = begun(name, fraction=0.5, oversample=0.5, config={"rate": 0.1}, compression="int8", seed=3)
    assert strategy.enough(4) == 2
    assert len(strategy.select(1, IDS)) == 3
    assert strategy.config(1)["rate"] == 0.1
    assert strategy.compression == fl.Compression("int8")


@every_strategy
def test_partials_of_two_workers_are_a_round_of_one(name: str) -> None:
    """The order of sums changes the rounding only. A strategy that needs each update says so."""
    one, here, workers = begun(name), begun(name), [begun(name), begun(name)]
    if not one.merges:
        with pytest.raises(NotImplementedError, match=f"{name} has no"):
            one.merge(one.partial())
        return
    for each in (one, here, *workers):
        each.select(1, IDS)
    for seed in range(8):
        one.fold(START, update(seed), client=IDS[0])
        workers[seed // 5].fold(START, update(seed), client=IDS[0])
    for worker in workers:
        here.merge(pickle.loads(pickle.dumps(worker.partial())))
    here.merge(workers[0].partial())  # nothing: a partial begins anew
    expected, found = one.finish(START, number=1), here.finish(START, number=1)
    for key in START:
        assert np.asarray(found[key]) == pytest.approx(np.asarray(expected[key]), rel=1e-6, abs=1e-6), key


@every_strategy
def test_partial_of_another_model_is_refused_without_a_trace(name: str) -> None:
    strategy, worker = begun(name), begun(name)
    if not strategy.merges:
        return
    fold(worker, 3)
    for broken in broken_partials(worker.partial()):
        with pytest.raises(fl.InvalidUpdate):
            strategy.merge(broken)
    assert round(strategy) == round(begun(name))


def broken_partials(partial: dict[str, Any]) -> Iterator[dict[str, Any]]:
    mean = partial.get("mean", partial)
    for key, wrong in (
        ("values", {**mean["values"], "b": np.zeros(4)}),
        ("values", {**mean["values"], "b": np.full(3, np.nan)}),
        ("values", {"w": mean["values"]["w"]}),
        ("bases", {"b": np.zeros(3)}),
        ("weight", -1.0),
        ("weight", "1"),
    ):
        broken = {**mean, key: wrong}
        yield {**partial, "mean": broken} if "mean" in partial else broken


@every_strategy
def test_strategy_can_be_pickled(name: str) -> None:
    """A worker that is spawned gets it so."""
    strategy = pickle.loads(pickle.dumps(STRATEGIES[name]()))
    strategy.begin(START)
    assert round(strategy) == round(begun(name))


def test_subclass_that_overrides_fold_alone_gets_each_update() -> None:
    class Folds(fl.FedAvg):
        def fold(self, *arguments: Any, **options: Any) -> None:
            super().fold(*arguments, **options)

    class Merges(Folds):
        def merge(self, partial: Any) -> None:
            super().merge(partial)

    class Config(fl.FedAvg):
        def config(self, number: int) -> Any:
            return {"rate": 1 / number}

    assert [kind().merges for kind in (Folds, Merges, Config)] == [False, True, True]
