"""A server or a client of a row: python -m benchmarks.federation.sides fl|grid|legacy server|client PORT [FOLDER].

fl: fl over TCP, or over TLS with the certificates in FOLDER. grid: Flower's apps over fl.flower. legacy: Flower's
deprecated gRPC server and client, without a SuperLink.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import netq
from benchmarks.federation import work
from netq.bench.resources import peak

MESSAGE = 2**31 - 1  # bytes, gRPC's limit


def main() -> None:
    """Run one side."""
    kind, side, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if kind == "legacy":
        (_legacy_server if side == "server" else _legacy_client)(f"127.0.0.1:{port}")
    else:
        (_fl if kind == "fl" else _grid)(side, _options(side, port, Path(sys.argv[4]) if sys.argv[4:] else None))


def _options(side: str, port: int, folder: Path | None) -> netq.CommunicatorOptions:
    security = None
    if folder is not None and side == "server":
        security = netq.SecurityOptions(folder / "server-key.pem", folder / "server.pem")
    elif folder is not None:
        security = netq.SecurityOptions(certificate=folder / "authority.pem")
    return netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port), security=security)


def _fl(side: str, options: netq.CommunicatorOptions) -> None:
    import fl

    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        work.train(model)
        return fl.Update(model, 1)

    if side == "client":
        fl.Client(train).run(options)
        return
    with fl.Server(work.model(), options, min_clients=work.CLIENTS) as server:
        server.wait(work.CLIENTS)
        clock = work.Clock()
        for report in server.rounds(work.ROUNDS):
            assert len(report.clients) == work.CLIENTS, report.failures
            clock.round_ends()
        work.report({**clock.figures(float(server.model["layer0"][0])), "server": peak()})


def _grid(side: str, options: netq.CommunicatorOptions) -> None:
    import fl.flower
    from benchmarks.federation import apps

    if side == "server":
        fl.flower.run(apps.server_app, options, min_nodes=work.CLIENTS)
    else:
        fl.flower.Node(apps.client_app).run(options)


def _legacy_client(address: str) -> None:
    import flwr

    class Client(flwr.client.NumPyClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            model = {str(number): array for number, array in enumerate(parameters)}
            work.train(model)
            return list(model.values()), 1, {}

    flwr.client.start_client(
        server_address=address, client=Client().to_client(), grpc_max_message_length=MESSAGE, insecure=True
    )


def _legacy_server(address: str) -> None:
    import flwr
    from flwr.server.strategy import FedAvg

    clock, last = work.Clock(), list[Any]()

    class TimedFedAvg(FedAvg):
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            result = super().aggregate_fit(server_round, results, failures)
            clock.round_ends()
            last[:] = [result[0]]
            return result

    clients = {"min_fit_clients": work.CLIENTS, "min_available_clients": work.CLIENTS}
    parameters = flwr.common.ndarrays_to_parameters(list(work.model().values()))
    strategy = TimedFedAvg(fraction_evaluate=0.0, initial_parameters=parameters, **clients)
    config = flwr.server.ServerConfig(num_rounds=work.ROUNDS)
    flwr.server.start_server(server_address=address, config=config, strategy=strategy, grpc_max_message_length=MESSAGE)
    work.report(clock.figures(float(flwr.common.parameters_to_ndarrays(last[0])[0][0])))


if __name__ == "__main__":
    main()
