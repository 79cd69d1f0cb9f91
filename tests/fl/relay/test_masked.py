"""Clients behind relays take part in secure aggregation: a relay carries their steps, and adds their vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import fl
from tests.fl.relay.test_relay import distance
from tests.fl.relay.tree import Shape, Tree

FLAT: Shape = [0, 1, 2, 3, 4, 5, 6, 7]
TWO: Shape = [[0, 1, 2], [3, 4, 5], 6, 7]
NESTED: Shape = [[[0, 1], 2], [3, 4, 5], 6, 7]


def model() -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {
        "w": random.normal(size=(40, 30)).astype(np.float32),
        "bn.running_mean": random.normal(size=30).astype(np.float32),
        "bn.num_batches_tracked": np.array(7, np.int64),
    }


def trains(number: int) -> Callable[[Any, Mapping[str, Any]], fl.Update]:
    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        random = np.random.default_rng([number, config["round"]])
        for name in ("w", "bn.running_mean"):
            model[name] = model[name] + random.normal(size=model[name].shape).astype(np.float32)
        model["bn.num_batches_tracked"] += number
        return fl.Update(model, 10 + number, {"loss": 0.5 + number})

    return train


def evaluates(number: int) -> Callable[[Any, Any], fl.Report]:
    return lambda model, config: fl.Report(10 + number, {"loss": float(number)})


def tree(shape: Shape, train: Any = trains, secure: Any = None, **settings: Any) -> Tree:
    secure = secure or fl.SecureAggregation(metrics=("loss",))
    return Tree(shape, train, model(), lambda: fl.FedAvg(max_examples=20), secure=secure, **settings)


@pytest.mark.parametrize("shape", [TWO, NESTED])
def test_the_model_is_that_of_a_federation_without_masks_and_relays(shape: Shape) -> None:
    with Tree(FLAT, trains, model(), lambda: fl.FedAvg(max_examples=20), evaluate=evaluates) as plain:
        reports = plain.rounds(3)
    with tree(shape, evaluate=evaluates) as masked:
        found = masked.rounds(3)
    for name, value in plain.server.model.items():
        assert distance(masked.server.model[name], value) <= (1e-6 if name == "w" else 1e-5), name
    for one, other in zip(reports, found, strict=True):
        assert other.masked is not None
        assert sorted(one.clients) == sorted(other.clients)
        assert not other.failures
        assert other.masked.examples == sum(one.num_examples.values())
        assert other.metrics["loss"] == pytest.approx(one.metrics["loss"], abs=1e-5)
        assert other.evaluation["loss"] == pytest.approx(one.evaluation["loss"], abs=1e-5)
        assert other.names.keys() >= set(other.clients)
