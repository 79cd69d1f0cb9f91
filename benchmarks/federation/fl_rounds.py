"""fl, over TCP or TLS: python -m benchmarks.federation.fl_rounds server|client PORT [FOLDER]."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fl
import netq
from benchmarks.federation import work


def main() -> None:
    """Run the server or a client."""
    side, port = sys.argv[1], int(sys.argv[2])
    folder = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    (serve if side == "server" else join)(port, folder)


def serve(port: int, folder: Path | None) -> None:
    """Run the rounds."""
    security = None if folder is None else netq.SecurityOptions(folder / "server-key.pem", folder / "server.pem")
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port), security=security)
    with fl.Server(work.model(), options, min_clients=work.CLIENTS) as server:
        server.wait(work.CLIENTS)
        clock = work.Clock()
        for report in server.rounds(work.ROUNDS):
            assert len(report.clients) == work.CLIENTS, report.failures
            clock.round_ends()
        work.report({**clock.figures(float(server.model["layer0"][0])), "server": work.peak()})


def join(port: int, folder: Path | None) -> None:
    """Train until the server ends."""
    security = None if folder is None else netq.SecurityOptions(certificate=folder / "authority.pem")
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port), security=security)
    fl.Client(_train).run(options)


def _train(model: Any, config: Mapping[str, Any]) -> fl.Update:
    work.train(model)
    return fl.Update(model, 1)


if __name__ == "__main__":
    main()
