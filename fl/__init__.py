"""Federated learning over netq: models go out, updates come back, and are folded in as they arrive.

with fl.Server(model, options, strategy=fl.FedAvg(), min_clients=4) as server:
    for report in server.rounds(20):
        print(report)

fl.Client(train).run(options)          # train(model, config) -> fl.Update(model, num_examples)
"""

from __future__ import annotations

from fl.aggregate import InvalidUpdate, WeightedMean
from fl.client import Client
from fl.messages import Report, Update
from fl.round import RoundReport
from fl.server import Server
from fl.strategy import FedAvg, Strategy
from fl.tensors import serialization

__all__ = [
    "Client",
    "FedAvg",
    "InvalidUpdate",
    "Report",
    "RoundReport",
    "Server",
    "Strategy",
    "Update",
    "WeightedMean",
    "serialization",
]
