"""Flower's deprecated gRPC server and client, without a SuperLink: python -m benchmarks.federation.legacy SIDE PORT."""

from __future__ import annotations

import sys
from typing import Any

import flwr
import numpy as np
from flwr.server.strategy import FedAvg

from benchmarks.federation import work

MESSAGE = 2**31 - 1  # bytes, gRPC's limit
clock = work.Clock()


class TimedFedAvg(FedAvg):
    """FedAvg that records when its rounds end."""

    last: Any = None

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Aggregate, and record the time."""
        result = super().aggregate_fit(server_round, results, failures)
        clock.round_ends()
        self.last = result[0]
        return result


class Client(flwr.client.NumPyClient):
    """Adds 1."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train."""
        model = {str(number): array for number, array in enumerate(parameters)}
        work.train(model)
        return list(model.values()), 1, {}


def main() -> None:
    """Run the server or a client."""
    side, address = sys.argv[1], f"127.0.0.1:{sys.argv[2]}"
    if side == "client":
        flwr.client.start_client(
            server_address=address, client=Client().to_client(), grpc_max_message_length=MESSAGE, insecure=True
        )
        return
    parameters = flwr.common.ndarrays_to_parameters(list(work.model().values()))
    strategy = TimedFedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=work.CLIENTS,
        min_available_clients=work.CLIENTS,
        initial_parameters=parameters,
    )
    config = flwr.server.ServerConfig(num_rounds=work.ROUNDS)
    flwr.server.start_server(server_address=address, config=config, strategy=strategy, grpc_max_message_length=MESSAGE)
    first = flwr.common.parameters_to_ndarrays(strategy.last)[0]
    work.report(clock.figures(float(np.asarray(first)[0])))


if __name__ == "__main__":
    main()
