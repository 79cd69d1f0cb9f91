"""Flower apps for these tests, as a user of Flower writes them, and a grid that runs them in this very process.

The ClientApp fits a line to examples that its partition determines, and trains in place: what it gives depends on
nothing but what it is sent, so a strategy comes to one result, whatever carries its messages.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import flwr.serverapp
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fl.flower._compat import Run, identity, make_message, set_message_id

ROUNDS = 3
Client = Callable[[Message, Context], Message]

CONTEXT = Context(1, 1, {}, RecordDict(), {})  # a server's

app = ClientApp()


def examples(partition: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    random = np.random.default_rng(partition)
    inputs = random.normal(size=(20 + 5 * partition, 6)).astype(np.float32)
    return inputs, (inputs @ np.arange(1, 7) + partition).astype(np.float32)


def model_of(message: Message) -> tuple[NDArray[Any], NDArray[Any]]:
    arrays: Any = message.content["arrays"]
    return arrays["weights"].numpy(), arrays["bias"].numpy()


def loss(weights: NDArray[Any], bias: NDArray[Any], partition: int) -> float:
    inputs, answers = examples(partition)
    return float(np.mean((inputs @ weights + bias - answers) ** 2))


@app.train()
def train(message: Message, context: Context) -> Message:
    partition = int(context.node_config["partition-id"])
    inputs, answers = examples(partition)
    weights, bias = model_of(message)
    before = loss(weights, bias, partition)
    for _ in range(5):
        errors = inputs @ weights + bias - answers
        weights -= 0.05 * inputs.T @ errors / len(answers)
        bias -= 0.05 * errors.mean()
    arrays = ArrayRecord({"weights": Array(weights), "bias": Array(bias)})
    metrics = MetricRecord({"num-examples": len(answers), "train_loss": before})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    partition = int(context.node_config["partition-id"])
    weights, bias = model_of(message)
    metrics = MetricRecord({"num-examples": len(examples(partition)[1]), "loss": loss(weights, bias, partition)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query()
def count(message: Message, context: Context) -> Message:
    """Return the number of messages in this run, and the config."""
    counter: Any = context.state.setdefault("counter", MetricRecord({"calls": 0}))
    counter["calls"] += 1
    if message.metadata.group_id == "fail":
        raise OSError("the sensor does not answer")
    return Message(RecordDict({"metrics": MetricRecord({"calls": counter["calls"]})}), reply_to=message)


def initial() -> ArrayRecord:
    return ArrayRecord({"weights": Array(np.zeros(6, np.float32)), "bias": Array(np.zeros((), np.float32))})


def server(strategy: Strategy, rounds: int = ROUNDS, **settings: Any) -> tuple[ServerApp, list[Result]]:
    """A ServerApp, and where its result will be."""
    made, results = ServerApp(), list[Result]()

    @made.main()
    def main(grid: flwr.serverapp.Grid, context: Context) -> None:
        results.append(strategy.start(grid, initial(), num_rounds=rounds, **settings))

    return made, results


class Direct(flwr.serverapp.Grid):
    """Calls the apps of its nodes at once, in this thread, with copies of the messages."""

    def __init__(self, clients: Mapping[int, tuple[Client, Context]]) -> None:
        self._clients = clients
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self._clients)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(f"message {len(self._replies)}")
            set_message_id(message, ids[-1])
            self._replies[ids[-1]] = self._reply(copy.deepcopy(message))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies[id] for id in message_ids]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _reply(self, message: Message) -> Message:
        client, context = self._clients[message.metadata.dst_node_id]
        try:
            return client(message, context)
        except Exception as error:
            metadata = Message(Error(0), reply_to=message).metadata
            return make_message(metadata, error=Error(2, f"{type(error)}:<'{error}'>"))


@contextmanager
def direct(client: Client, nodes: int) -> Iterator[Direct]:
    """A grid of so many nodes in this process."""
    contexts = [Context(1, 10 + number, {"partition-id": number}, RecordDict(), {}) for number in range(nodes)]
    with identity(1):
        yield Direct({context.node_id: (client, context) for context in contexts})
