"""Federated learning over netq: the server sends a model, clients train it, and updates are folded as they arrive.

with fl.Server(model, options, strategy=fl.FedAvg(), min_clients=4) as server:
    for report in server.rounds(20):
        print(report)

fl.Client(train).run(options)          # train(model, config) -> fl.Update(model, num_examples)
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from netq.cli import launch

if sys.argv[:1] == ["-m"]:  # so it is until `python -m fl` has imported the package
    launch.check_extra("fl")

if TYPE_CHECKING:
    from fl import callbacks, data, schedules
    from fl.aggregation.mean import WeightedMean
    from fl.callbacks.base import Callback, ClientState
    from fl.callbacks.best import EarlyStopping, SaveBest
    from fl.callbacks.jsonl import JsonLines, Measured
    from fl.callbacks.mlflow import MLflow
    from fl.callbacks.progress import Progress
    from fl.callbacks.prometheus import Prometheus
    from fl.callbacks.tensorboard import TensorBoard
    from fl.client import Client
    from fl.compression.compressor import Compression
    from fl.errors import (
        CheckpointError,
        FederationStalled,
        InvalidUpdate,
        SimulationError,
        TooFewUpdates,
        UpdateStoreError,
    )
    from fl.messages import Report, Skip, Update
    from fl.metrics import Sum
    from fl.properties import ClientInfo
    from fl.report import ClientFailure, FailureKind, RoundReport
    from fl.server.patience import Patience
    from fl.server.server import Server
    from fl.simulation.simulate import simulate
    from fl.strategies.asynchronous import FedAsync, FedBuff
    from fl.strategies.base import Strategy, hinge, polynomial
    from fl.strategies.client_side import ControlVariate, proximal_gradient, proximal_term
    from fl.strategies.fedavg import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi
    from fl.strategies.heterogeneous import FedNova, QFedAvg, Scaffold
    from fl.strategies.robust import Bulyan, FedMedian, FedTrimmedAvg, GeometricMedian, Krum, MultiKrum
    from fl.tensors.roles import state
    from fl.tensors.serialization import serialization

__all__ = [
    "Bulyan",
    "Callback",
    "CheckpointError",
    "Client",
    "ClientFailure",
    "ClientInfo",
    "ClientState",
    "Compression",
    "EarlyStopping",
    "ControlVariate",
    "FailureKind",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedMedian",
    "FedNova",
    "FedProx",
    "FederationStalled",
    "FedTrimmedAvg",
    "FedYogi",
    "GeometricMedian",
    "InvalidUpdate",
    "JsonLines",
    "Krum",
    "MLflow",
    "Measured",
    "MultiKrum",
    "Patience",
    "Progress",
    "Prometheus",
    "QFedAvg",
    "Report",
    "RoundReport",
    "SaveBest",
    "Scaffold",
    "Server",
    "SimulationError",
    "Skip",
    "Strategy",
    "Sum",
    "TensorBoard",
    "TooFewUpdates",
    "Update",
    "UpdateStoreError",
    "WeightedMean",
    "callbacks",
    "data",
    "hinge",
    "polynomial",
    "proximal_gradient",
    "proximal_term",
    "schedules",
    "serialization",
    "simulate",
    "state",
]


# Of the public names. They are imported when they are first used: what moves messages needs no numpy.
MODULES = {
    "fl": ("callbacks", "data", "schedules"),
    "fl.aggregation.mean": ("WeightedMean",),
    "fl.callbacks.base": ("Callback", "ClientState"),
    "fl.callbacks.best": ("EarlyStopping", "SaveBest"),
    "fl.callbacks.jsonl": ("JsonLines", "Measured"),
    "fl.callbacks.mlflow": ("MLflow",),
    "fl.callbacks.progress": ("Progress",),
    "fl.callbacks.prometheus": ("Prometheus",),
    "fl.callbacks.tensorboard": ("TensorBoard",),
    "fl.client": ("Client",),
    "fl.compression.compressor": ("Compression",),
    "fl.errors": (
        "CheckpointError",
        "FederationStalled",
        "InvalidUpdate",
        "SimulationError",
        "TooFewUpdates",
        "UpdateStoreError",
    ),
    "fl.messages": ("Report", "Skip", "Update"),
    "fl.metrics": ("Sum",),
    "fl.properties": ("ClientInfo",),
    "fl.report": ("ClientFailure", "FailureKind", "RoundReport"),
    "fl.server.patience": ("Patience",),
    "fl.server.server": ("Server",),
    "fl.simulation.simulate": ("simulate",),
    "fl.strategies.asynchronous": ("FedAsync", "FedBuff"),
    "fl.strategies.base": ("Strategy", "hinge", "polynomial"),
    "fl.strategies.client_side": ("ControlVariate", "proximal_gradient", "proximal_term"),
    "fl.strategies.fedavg": ("FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedProx", "FedYogi"),
    "fl.strategies.heterogeneous": ("FedNova", "QFedAvg", "Scaffold"),
    "fl.strategies.robust": ("Bulyan", "FedMedian", "FedTrimmedAvg", "GeometricMedian", "Krum", "MultiKrum"),
    "fl.tensors.roles": ("state",),
    "fl.tensors.serialization": ("serialization",),
}
_MODULE_OF = {name: module for module, names in MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fl' has no attribute {name!r}")
    module = _MODULE_OF[name]
    value = importlib.import_module(f"fl.{name}") if module == "fl" else getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, for completion: `fl.<Tab>` lists no modules."""
    return __all__
