"""Whole runs of our strategy with nodes that answer with other arrays than they were sent."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import fl.flower
from fl.aggregation.mean import WeightedMean
from netq.testing.log import LogRecorder
from tests.fl.flower.apps import CONTEXT, ROUNDS, direct, model_of, server, train
from tests.fl.flower.federation import SOON, Federation


def test_a_broken_node_that_replies_first_is_left_out() -> None:
    begun = threading.Event()

    def kernel(like: Any) -> WeightedMean:
        begun.set()
        return WeightedMean(like)

    def client(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 0:
            return broken(message, context)
        assert begun.wait(SOON)  # the broken one has been folded by now
        return train(message, context)

    server_app, results = server(fl.flower.FedAvg(kernel=kernel, fraction_evaluate=0.0))
    with Federation() as federation, LogRecorder("flwr") as log:
        federation.join_all(client, 3)
        federation.run(server_app)
        assert len(log.having("aggregate_train: Received 2 results and 1 failures")) == ROUNDS
    assert results[0].arrays["weights"].numpy().shape == (6,)


@pytest.mark.parametrize("bad", range(3))  # one of the three is the first to be asked
def test_a_broken_node_is_left_out_in_one_process(bad: int) -> None:
    def client(message: Message, context: Context) -> Message:
        return (broken if context.node_config["partition-id"] == bad else train)(message, context)

    def failing(message: Message, context: Context) -> Message:
        assert context.node_config["partition-id"] != bad
        return train(message, context)

    found = []
    for each in (client, failing):
        random.seed(1)  # FedAvg samples the nodes, and they answer in that order
        found.append(in_process(fl.flower.FedAvg(fraction_evaluate=0.0), each))
    assert_close(*found)


def broken(message: Message, context: Context) -> Message:
    """An app of another version of the model."""
    arrays = ArrayRecord({"weights": Array(np.ones(5, np.float32))})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


def body(message: Message, context: Context) -> Message:
    """An app that answers with the weights alone: the bias is the node's own."""
    arrays: Any = message.content["arrays"]
    weights = arrays["weights"].numpy() + 1 + context.node_config["partition-id"]
    record = ArrayRecord({"weights": Array(weights)})
    return Message(RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


def wider(message: Message, context: Context) -> Message:
    """An app that computes in float64."""
    weights, bias = (np.asarray(array, np.float64) + 0.5 for array in model_of(message))
    arrays = ArrayRecord({"weights": Array(weights), "bias": Array(np.asarray(bias))})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


@pytest.mark.parametrize("client", [body, wider])
def test_other_reply_shapes_give_the_result_of_fedavg(client: Any) -> None:
    expected = in_process(FedAvg(fraction_evaluate=0.0), client)
    assert_close(in_process(fl.flower.FedAvg(fraction_evaluate=0.0), client), expected)
    server_app, results = server(fl.flower.FedAvg(fraction_evaluate=0.0))
    with Federation() as federation:
        federation.join_all(client, 3)
        federation.run(server_app)
    assert_close(results[0].arrays, expected)


def in_process(strategy: FedAvg, client: Callable[[Message, Context], Message]) -> ArrayRecord:
    """What three nodes come to."""
    server_app, results = server(strategy)
    with direct(client, 3) as grid:
        server_app(grid, CONTEXT)
    return results[0].arrays


def assert_close(found: ArrayRecord, expected: ArrayRecord) -> None:
    assert list(found) == list(expected)
    for name in expected:
        assert found[name].dtype == expected[name].dtype
        np.testing.assert_allclose(found[name].numpy(), expected[name].numpy(), rtol=1e-5)
