"""Tests of fl/trainer.py: what is sent of a trained model, and what stays at its client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import fl
from fl.compression.packed import Packed
from fl.envelope import Job
from fl.messages import Report, Task, Update
from fl.trainer import Trainer

INF = np.inf


def f4(*values: float) -> Any:
    return np.array(values, np.float32)


def task(number: int = 1, purpose: Any = "train", **fields: Any) -> Task:
    model = {"w": f4(1), "mean": f4(2), "mask": f4(0, -INF)}
    return Task(Job(1, number, purpose), model, {}, **{"roles": ROLES, **fields})


ROLES: Any = {"mean": "averaged", "mask": "constant", "head": "local", "head.b": "local"}


def adds(model: Any, config: Mapping[str, Any]) -> Update:
    """Add 1 to what is trained. The head begins at 10."""
    model.setdefault("head", f4(10))
    for name in ("w", "mean", "head"):
        model[name] += 1
    return Update(model, 1)


def done(trainer: Trainer, *arguments: Any, **fields: Any) -> dict[str, Any]:
    content = trainer.do(task(*arguments, **fields))
    assert isinstance(content, Update), content
    return content.model


def values(model: Mapping[str, Any]) -> dict[str, list[float]]:
    return {name: tensor.tolist() for name, tensor in model.items()}


def test_local_tensors_stay_and_come_back() -> None:
    trainer = Trainer(adds)
    for number in (1, 2, 3):
        assert values(done(trainer, number)) == {"w": [2], "mean": [3]}
        assert values(trainer.local) == {"head": [10 + number]}


def test_local_tensors_are_copies() -> None:
    live: dict[str, Any] = {"head": f4(5)}
    trainer = Trainer(lambda model, config: Update({**model, **live}, 1))
    done(trainer)
    live["head"] += 1
    assert values(trainer.local) == {"head": [5]}


def test_a_failed_training_changes_no_local_tensor() -> None:
    trainer = Trainer(adds)
    done(trainer)

    def fails(model: Any, config: Mapping[str, Any]) -> Update:
        model["head"] += 100
        raise OSError("no disk")

    trainer._functions["train"] = fails
    assert "no disk" in str(trainer.do(task(2)))
    assert values(trainer.local) == {"head": [11]}


def test_a_local_value_that_is_no_tensor_is_refused() -> None:
    trainer = Trainer(adds)
    done(trainer)
    trainer._functions["train"] = lambda model, config: Update({**model, "head": [1.0]}, 1)
    assert "'head': a list; expected a numpy array" in str(trainer.do(task(2)))
    assert values(trainer.local) == {"head": [11]}


def test_an_evaluation_gets_local_tensors_and_changes_none() -> None:
    seen: list[float] = []

    def evaluate(model: Any, config: Mapping[str, Any]) -> Report:
        seen.extend(model["head"].tolist())
        model["head"] += 1
        return Report(1)

    trainer = Trainer(adds, evaluate)
    done(trainer)
    for _ in range(2):
        trainer.do(task(1, "evaluate"))
    assert seen == [11, 11]


def test_local_tensors_survive_a_restart() -> None:
    trainer, restarted = Trainer(adds), Trainer(adds)
    done(trainer)
    restarted.restore(trainer.save())
    done(restarted)
    assert values(restarted.local) == {"head": [12]}


def test_tensors_that_are_not_local_any_more_are_dropped() -> None:
    trainer = Trainer(adds)
    done(trainer)
    content = trainer.do(task(2, roles={"mean": "averaged", "mask": "constant"}))
    assert isinstance(content, Update)
    assert content.model["head"].tolist() == [11]  # which the server refuses
    assert trainer.local == {}


@pytest.mark.parametrize("fields", [{"deltas": True}, {"compression": {"dtype": "int8"}}])
def test_only_trained_tensors_are_packed_or_sent_as_differences(fields: dict[str, Any]) -> None:
    model = done(Trainer(adds), **fields)
    assert model["mean"].tolist() == [3]
    trained = model["w"].unpack() if isinstance(model["w"], Packed) else model["w"]
    np.testing.assert_allclose(trained, [1], rtol=1e-2)


def test_a_constant_is_not_sent() -> None:
    assert "mask" not in done(Trainer(lambda model, config: Update(model, 1)))
    assert "mask" not in done(Trainer(lambda model, config: Update({"w": model["w"], "mean": model["mean"]}, 1)))


@pytest.mark.parametrize("fields", [{}, {"deltas": True}, {"compression": {"dtype": "int8"}}])
def test_a_constant_that_training_changes_is_refused(fields: dict[str, Any]) -> None:
    def changes(model: Any, config: Mapping[str, Any]) -> Update:
        model["mask"][:] = 0
        return Update(model, 1)

    trainer = Trainer(changes)
    assert "'mask' is constant, and training has changed it; expected the value that came" in str(
        trainer.do(task(**fields))
    )
    assert trainer.local == {}


@pytest.mark.parametrize(
    ("change", "warned"),
    [
        (lambda model: model.update(mean=f4(INF)), False),  # where nothing was observed yet
        (lambda model: model.update(w=f4(np.nan)), "'w' holds NaN or infinity"),
        (lambda model: model.pop("mean"), "'mean' is missing"),
        (lambda model: model.update(other=f4(1)), "'other' is unexpected"),
        (lambda model: model.update(mean=np.ones(3)), "'mean' is float64 of shape"),
    ],
)
def test_an_update_that_strategies_refuse_is_warned_of(
    change: Callable[[dict[str, Any]], Any], warned: str | bool, caplog: pytest.LogCaptureFixture
) -> None:
    def train(model: Any, config: Mapping[str, Any]) -> Update:
        change(model)
        return fl.Update(model, 1)

    with caplog.at_level(logging.WARNING):
        done(Trainer(train))
    assert (f"most strategies refuse this update: {warned}" in caplog.text) == bool(warned)
