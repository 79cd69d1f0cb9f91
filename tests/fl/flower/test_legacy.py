"""Flower's apps of before the message API: server_fn and ServerConfig, client_fn and NumPyClient."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp

from tests.fl.flower.apps import CONTEXT, direct
from tests.fl.flower.federation import SOON, Federation

LONG = 3.0  # seconds, in which two nodes answer however busy the machine is


class Client(NumPyClient):
    """Moves the model by its partition."""

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def get_parameters(self, config: dict[str, Any]) -> list[Any]:
        return [np.zeros((2, 3), np.float32), np.zeros(1)]

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        for array in parameters:
            array += self._partition + config["step"]
        return parameters, 1 + self._partition, {"partition": self._partition}

    def evaluate(self, parameters: list[Any], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        return float(parameters[0].mean()), 10, {"accuracy": 0.5}


def client_fn(context: Context) -> Any:
    if context.node_config["partition-id"] == 9:
        assert over.wait(SOON)
    return Client(int(context.node_config["partition-id"])).to_client()


client_app = ClientApp(client_fn)
over = threading.Event()  # partition 9 is busy until then


class Recorder(FedAvg):
    """FedAvg that keeps its result."""

    def __init__(self, **options: Any) -> None:
        super().__init__(on_fit_config_fn=lambda number: {"step": number}, **options)
        self.models: list[list[Any]] = []
        self.failures: list[Any] = []
        self.losses: list[float | None] = []

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        assert parameters is not None
        self.models.append(parameters_to_ndarrays(parameters))
        self.failures += failures
        return parameters, metrics

    def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
        loss, metrics = super().aggregate_evaluate(server_round, results, failures)
        self.losses.append(loss)
        return loss, metrics


def server_app(strategy: FedAvg, rounds: int = 3, timeout: float | None = None) -> ServerApp:
    config = ServerConfig(num_rounds=rounds, round_timeout=timeout)
    return ServerApp(server_fn=lambda context: ServerAppComponents(strategy=strategy, config=config))


@pytest.mark.parametrize("initial", [None, [np.ones((2, 3), np.float32), np.ones(1)]])
def test_a_legacy_app_runs_unchanged(initial: list[Any] | None) -> None:
    parameters = None if initial is None else ndarrays_to_parameters(initial)
    ours, theirs = (Recorder(initial_parameters=parameters) for _ in range(2))
    with Federation() as federation:
        federation.join_all(client_app, 3)
        federation.run(server_app(ours))
    with direct(client_app, 3) as grid:
        server_app(theirs)(grid, CONTEXT)
    assert len(ours.models) == 3
    for mine, other in zip(ours.models, theirs.models, strict=True):
        for one, two in zip(mine, other, strict=True):
            assert one.dtype == two.dtype
            np.testing.assert_allclose(one, two, rtol=1e-6)
    assert ours.losses == pytest.approx(theirs.losses)
    assert ours.failures == []


@pytest.mark.slow
def test_the_ttl_enforces_a_round_timeout() -> None:
    """Legacy mode asks without a timeout, and gives its messages as long to live."""
    over.clear()
    initial = ndarrays_to_parameters([np.zeros(2)])  # or one of the nodes is asked for them
    strategy = Recorder(min_available_clients=2, fraction_evaluate=0.0, initial_parameters=initial)
    with Federation() as federation:
        federation.join_all(client_app, 2)
        federation.join(client_app, {"partition-id": 9})
        federation.run(server_app(strategy, rounds=1, timeout=LONG))
        over.set()
    assert len(strategy.models) == 1
    assert len(strategy.failures) == 1
