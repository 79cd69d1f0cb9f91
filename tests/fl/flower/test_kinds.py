"""Kinds of Flower apps beyond averaging run unchanged over a grid: XGBoost, SecAgg+, adaptive clipping at the nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import flwr.serverapp
import numpy as np
import pytest
import xgboost
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secagg_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow, SecAggWorkflow
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    FedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    Strategy,
)

from tests.fl.flower.apps import CONTEXT, ROUNDS, direct, evaluate, train
from tests.fl.flower.federation import Federation
from tests.fl.flower.test_legacy import Recorder, client_fn
from tests.fl.flower.test_strategies import NODES, assert_close, assert_same, in_process, over

PARAMETERS = {
    "objective": "reg:squarederror",
    "base_score": 0.0,
    "max_depth": 2,
    "nthread": 1,
}  # no order of replies counts


def boosting(partitioned: bool) -> ClientApp:
    """Flower's XGBoost quickstart: each round adds a tree to the model, which travels as JSON in an array of bytes."""
    made = ClientApp()

    def data(context: Context) -> xgboost.DMatrix:
        random = np.random.default_rng(int(context.node_config["partition-id"]) if partitioned else 0)
        inputs = random.normal(size=(100, 3))
        return xgboost.DMatrix(inputs, label=inputs @ [1.0, -2.0, 0.5])

    @made.train()
    def boost(message: Message, context: Context) -> Message:
        local, arrays = data(context), model_of(message.content)
        if arrays.size == 0:
            booster = xgboost.train(PARAMETERS, local, num_boost_round=1)
        else:
            booster = xgboost.Booster(params=PARAMETERS)
            booster.load_model(bytearray(arrays.tobytes()))
            booster.update(local, booster.num_boosted_rounds())
            booster = booster[booster.num_boosted_rounds() - 1 :] if partitioned else booster
        raw = np.frombuffer(booster.save_raw("json"), np.uint8)
        content = RecordDict({"arrays": ArrayRecord([raw]), "metrics": MetricRecord({"num-examples": 100})})
        return Message(content, reply_to=message)

    return made


def model_of(content: RecordDict) -> Any:
    arrays: Any = content["arrays"]
    return arrays["0"].numpy()


def boosted(strategy: Strategy, run: Callable[[ServerApp], object]) -> xgboost.Booster:
    """Return the model after the rounds of a strategy."""
    made, models = ServerApp(), list[bytes]()

    @made.main()
    def main(grid: flwr.serverapp.Grid, context: Context) -> None:
        nothing = ArrayRecord([np.frombuffer(b"", np.uint8)])
        found = strategy.start(grid, nothing, num_rounds=ROUNDS).arrays
        models.append(found["0"].numpy().tobytes())

    run(made)
    json.loads(models[0])
    booster = xgboost.Booster()
    booster.load_model(bytearray(models[0]))
    return booster


@pytest.mark.parametrize(
    ("strategy", "partitioned", "trees"),
    [
        (lambda: FedXgbBagging(fraction_evaluate=0.0), True, ROUNDS * NODES),
        (lambda: FedXgbCyclic(fraction_evaluate=0.0), False, ROUNDS),
    ],
    ids=["bagging", "cyclic"],
)
def test_xgboost_runs_unchanged(strategy: Callable[[], Strategy], partitioned: bool, trees: int) -> None:
    client = boosting(partitioned)
    with Federation() as federation:
        federation.join_all(client, NODES)
        ours = boosted(strategy(), federation.run)
    with direct(client, NODES) as grid:
        theirs = boosted(strategy(), lambda app: app(grid, CONTEXT))
    assert len(ours.get_dump()) == trees
    inputs = xgboost.DMatrix(np.random.default_rng(99).normal(size=(20, 3)))
    np.testing.assert_allclose(ours.predict(inputs), theirs.predict(inputs), rtol=1e-4, atol=1e-5)
    assert np.ptp(ours.predict(inputs)) > 0


@pytest.mark.parametrize(
    ("workflow", "mod"),
    [(SecAggWorkflow(2, max_weight=10.0), secagg_mod), (SecAggPlusWorkflow(3, 2, max_weight=10.0), secaggplus_mod)],
    ids=["SecAgg", "SecAgg+"],
)
def test_secure_aggregation_runs_unchanged(workflow: Any, mod: Any) -> None:
    """The sum of masked updates is the plain one, but for its quantization."""
    initial = ndarrays_to_parameters([np.zeros((2, 3)), np.zeros(1)])
    secure, plain = (Recorder(initial_parameters=initial, fraction_evaluate=0.0) for _ in range(2))

    def app(strategy: Recorder, fit: Any) -> ServerApp:
        made = ServerApp()

        @made.main()
        def main(grid: flwr.serverapp.Grid, context: Context) -> None:
            legacy = LegacyContext(context, config=ServerConfig(num_rounds=2), strategy=strategy)
            DefaultWorkflow(fit_workflow=fit)(grid, legacy)

        return made

    with Federation() as federation:
        federation.join_all(ClientApp(client_fn, mods=[mod]), 3)
        federation.run(app(secure, workflow))
    with direct(ClientApp(client_fn), 3) as grid:
        app(plain, None)(grid, CONTEXT)
    assert len(secure.models) == 2
    for mine, other in zip(secure.models, plain.models, strict=True):
        for one, two in zip(mine, other, strict=True):
            np.testing.assert_allclose(one, two, atol=1e-4)
    assert secure.failures == []


def test_adaptive_clipping_at_the_nodes_runs_unchanged() -> None:
    def strategy() -> Strategy:
        return DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(), 0.0, NODES, 0.5, clipped_count_stddev=0.0)

    clipped = ClientApp()
    clipped.train(mods=[adaptiveclipping_mod])(train)
    clipped.evaluate()(evaluate)
    with Federation() as federation:
        found = over(federation, strategy(), clipped)
    assert_same(found, in_process(strategy(), clipped))
    with pytest.raises(AssertionError):
        assert_close(found.arrays, in_process(FedAvg()).arrays)
