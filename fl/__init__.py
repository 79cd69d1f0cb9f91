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
    from fl import callbacks as callbacks
    from fl import data as data
    from fl import schedules as schedules
    from fl.aggregation.mean import WeightedMean as WeightedMean
    from fl.callbacks.base import Callback as Callback
    from fl.callbacks.base import ClientState as ClientState
    from fl.callbacks.best import EarlyStopping as EarlyStopping
    from fl.callbacks.best import SaveBest as SaveBest
    from fl.callbacks.jsonl import JsonLines as JsonLines
    from fl.callbacks.jsonl import Measured as Measured
    from fl.callbacks.mlflow import MLflow as MLflow
    from fl.callbacks.progress import Progress as Progress
    from fl.callbacks.prometheus import Prometheus as Prometheus
    from fl.callbacks.tensorboard import TensorBoard as TensorBoard
    from fl.client import Client as Client
    from fl.column_statistics import Column as Column
    from fl.column_statistics import ColumnStatistics as ColumnStatistics
    from fl.column_statistics import StatisticsReport as StatisticsReport
    from fl.compression.compressor import Compression as Compression
    from fl.errors import CheckpointError as CheckpointError
    from fl.errors import FederationStalled as FederationStalled
    from fl.errors import InvalidUpdate as InvalidUpdate
    from fl.errors import PrivacyBudgetSpent as PrivacyBudgetSpent
    from fl.errors import RelayError as RelayError
    from fl.errors import SimulationError as SimulationError
    from fl.errors import TooFewUpdates as TooFewUpdates
    from fl.errors import UpdateStoreError as UpdateStoreError
    from fl.homomorphic.options import Homomorphic as Homomorphic
    from fl.messages import Report as Report
    from fl.messages import Skip as Skip
    from fl.messages import Update as Update
    from fl.metrics import Sum as Sum
    from fl.page.callback import Page as Page
    from fl.privacy.options import DifferentialPrivacy as DifferentialPrivacy
    from fl.properties import ClientInfo as ClientInfo
    from fl.relay.relay import Relay as Relay
    from fl.report import ClientFailure as ClientFailure
    from fl.report import FailureKind as FailureKind
    from fl.report import MaskedSum as MaskedSum
    from fl.report import PrivacySpent as PrivacySpent
    from fl.report import RoundReport as RoundReport
    from fl.secure.options import SecureAggregation as SecureAggregation
    from fl.secure.options import SecurePolicy as SecurePolicy
    from fl.server.patience import Patience as Patience
    from fl.server.server import Server as Server
    from fl.simulation.devices import Devices as Devices
    from fl.simulation.simulate import simulate as simulate
    from fl.status import ClientStatus as ClientStatus
    from fl.status import Refusal as Refusal
    from fl.status import Stage as Stage
    from fl.strategies.asynchronous import FedAsync as FedAsync
    from fl.strategies.asynchronous import FedBuff as FedBuff
    from fl.strategies.base import Strategy as Strategy
    from fl.strategies.base import hinge as hinge
    from fl.strategies.base import polynomial as polynomial
    from fl.strategies.client_side import ControlVariate as ControlVariate
    from fl.strategies.client_side import proximal_gradient as proximal_gradient
    from fl.strategies.client_side import proximal_term as proximal_term
    from fl.strategies.fedavg import FedAdagrad as FedAdagrad
    from fl.strategies.fedavg import FedAdam as FedAdam
    from fl.strategies.fedavg import FedAvg as FedAvg
    from fl.strategies.fedavg import FedAvgM as FedAvgM
    from fl.strategies.fedavg import FedProx as FedProx
    from fl.strategies.fedavg import FedYogi as FedYogi
    from fl.strategies.heterogeneous import FedNova as FedNova
    from fl.strategies.heterogeneous import QFedAvg as QFedAvg
    from fl.strategies.heterogeneous import Scaffold as Scaffold
    from fl.strategies.robust import Bulyan as Bulyan
    from fl.strategies.robust import FedMedian as FedMedian
    from fl.strategies.robust import FedTrimmedAvg as FedTrimmedAvg
    from fl.strategies.robust import GeometricMedian as GeometricMedian
    from fl.strategies.robust import Krum as Krum
    from fl.strategies.robust import MultiKrum as MultiKrum
    from fl.tensors.roles import state as state
    from fl.tensors.serialization import serialization as serialization

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
    "fl.column_statistics": ("Column", "ColumnStatistics", "StatisticsReport"),
    "fl.compression.compressor": ("Compression",),
    "fl.errors": (
        "CheckpointError",
        "FederationStalled",
        "InvalidUpdate",
        "PrivacyBudgetSpent",
        "RelayError",
        "SimulationError",
        "TooFewUpdates",
        "UpdateStoreError",
    ),
    "fl.homomorphic.options": ("Homomorphic",),
    "fl.messages": ("Report", "Skip", "Update"),
    "fl.metrics": ("Sum",),
    "fl.page.callback": ("Page",),
    "fl.privacy.options": ("DifferentialPrivacy",),
    "fl.properties": ("ClientInfo",),
    "fl.relay.relay": ("Relay",),
    "fl.report": ("ClientFailure", "FailureKind", "MaskedSum", "PrivacySpent", "RoundReport"),
    "fl.secure.options": ("SecureAggregation", "SecurePolicy"),
    "fl.server.patience": ("Patience",),
    "fl.server.server": ("Server",),
    "fl.simulation.devices": ("Devices",),
    "fl.simulation.simulate": ("simulate",),
    "fl.status": ("ClientStatus", "Refusal", "Stage"),
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
__all__ = list(_MODULE_OF)


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
