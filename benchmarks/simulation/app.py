"""The Flower app of the row "Flower on Ray": FedAvg, train only. Imported by its processes."""

from __future__ import annotations

import os
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.federation.apps import timed
from benchmarks.federation.work import Clock, report
from benchmarks.simulation import work

client_app = ClientApp()
server_app = ServerApp()


@client_app.train()
def _train(message: Message, context: Context) -> Message:
    record: Any = message.content["arrays"]
    model = {name: array.numpy().copy() for name, array in record.items()}
    work.step(model["weights"], model["bias"], int(context.node_config["partition-id"]))
    arrays = ArrayRecord({name: Array(array) for name, array in model.items()})
    metrics = MetricRecord({"num-examples": work.EXAMPLES})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server_app.main()
def _main(grid: Grid, context: Context) -> None:
    clients, rounds = int(os.environ["SIMULATION_CLIENTS"]), int(os.environ["SIMULATION_ROUNDS"])
    clock = Clock()
    strategy = timed(FedAvg, clock, fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    start = ArrayRecord({name: Array(array) for name, array in work.initial().items()})
    result = strategy.start(grid, start, num_rounds=rounds, timeout=3600)
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    report(clock.figures(work.accuracy(arrays["weights"], arrays["bias"])))
