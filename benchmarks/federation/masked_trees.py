"""What relays save the server under secure aggregation: python -m benchmarks.federation.masked_trees. Prints a table.

How many bytes come in at the server in a round, with the clients connected to it, and behind relays? All are threads
of one process. docs/how-to/relay.md has the figures.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

import fl
import netq
from netq.bench.output import markdown

CLIENTS, COUNT = 24, 4
SIZES = (1, 10)  # MB of a model
RELAYS = (0, 2, 4)
LIMIT = 600.0  # seconds


def main() -> None:
    """Answer the question."""
    rows = [["MB", "relays", "MB in a round", "in the round with the set-up", "s/round"]]
    for size in SIZES:
        for relays in RELAYS:
            first, *others = _run(size, relays)
            into = statistics.median(report.bytes_in for report in others)
            seconds = statistics.median(report.seconds for report in others)
            row = [f"{into / 1e6:.2f}", f"{first.bytes_in / 1e6:.2f}", f"{seconds:.2f}"]
            rows.append([f"{size}", str(relays or "none"), *row])
    print("\n".join(markdown(rows)))


def _run(size: float, relays: int) -> list[fl.RoundReport]:
    """Return the reports of the rounds."""
    model = {"w": np.zeros(int(size * 1e6 / 4), np.float32)}
    settings: dict[str, Any] = {"secure": fl.SecureAggregation(min_clients=CLIENTS), "relays": True}
    settings |= {"min_clients": relays or CLIENTS, "patience": fl.Patience(deadline=LIMIT)}
    equal, threads = fl.FedAvg(max_examples="equal"), list[threading.Thread]()
    with fl.Server(model, _at(0), strategy=equal, **settings) as server:
        for _ in range(relays):
            grows = [_Grows(threads, CLIENTS // relays)]
            own: dict[str, Any] = {"strategy": equal, "min_clients": CLIENTS // relays, "callbacks": grows}
            relay = fl.Relay(_at(server.netloc.port), _at(0), **own)
            threads.append(threading.Thread(target=relay.run))
            threads[-1].start()
        if not relays:
            _Grows(threads, CLIENTS).listens(server)
        reports = list(server.rounds(COUNT))
    for thread in threads:
        thread.join()
    assert all(len(report.clients) == CLIENTS for report in reports), reports
    return reports


class _Grows(fl.Callback):
    """Starts clients of a server when it listens."""

    def __init__(self, threads: list[threading.Thread], clients: int) -> None:
        self._threads = threads
        self._clients = clients

    def listens(self, server: Any) -> None:
        for _ in range(self._clients):
            thread = threading.Thread(target=fl.Client(_adds).run, args=(_at(server.netloc.port),))
            thread.start()
            self._threads.append(thread)


def _at(port: int) -> netq.CommunicatorOptions:
    return netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port))


def _adds(model: Any, config: Mapping[str, Any]) -> fl.Update:
    return fl.Update({"w": model["w"] + np.float32(1)}, 1)


if __name__ == "__main__":
    main()
