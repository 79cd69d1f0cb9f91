"""The Flower apps of the rows that Flower or fl.flower runs: Flower's FedAvg, train only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from benchmarks.federation import work

client_app = ClientApp()
server_app = ServerApp()
clock = work.Clock()


@client_app.train()
def _train(message: Message, context: Context) -> Message:
    record: Any = message.content["arrays"]
    model = {name: array.numpy() for name, array in record.items()}
    work.train(model)
    arrays = ArrayRecord({name: Array(array) for name, array in model.items()})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


def timed(kind: Any, clock: work.Clock, **options: Any) -> Strategy:
    """Return a strategy of a kind that records when its rounds end."""

    class Timed(kind):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            result = super().aggregate_train(server_round, replies)
            clock.round_ends()
            return result

    return Timed(**options)


@server_app.main()
def _main(grid: Grid, context: Context) -> None:
    options = {"fraction_evaluate": 0.0, "min_train_nodes": work.CLIENTS, "min_available_nodes": work.CLIENTS}
    kind: Any = FedAvg
    if os.environ.get("FEDERATION_KERNEL"):
        import fl.flower

        kind = fl.flower.FedAvg
    strategy = timed(kind, clock, **options)
    start = ArrayRecord({name: Array(array) for name, array in work.model().items()})
    result = strategy.start(grid, start, num_rounds=work.ROUNDS, timeout=600)
    work.report(clock.figures(float(result.arrays["layer0"].numpy()[0])))
