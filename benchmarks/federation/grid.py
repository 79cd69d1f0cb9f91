"""Flower's apps over fl.flower: python -m benchmarks.federation.grid server|node PORT."""

from __future__ import annotations

import sys

import fl.flower
import netq
from benchmarks.federation import apps, work


def main() -> None:
    """Run the server or a node."""
    side, port = sys.argv[1], int(sys.argv[2])
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port))
    if side == "server":
        fl.flower.run(apps.server_app, options, min_nodes=work.CLIENTS)
    else:
        fl.flower.Node(apps.client_app).run(options)


if __name__ == "__main__":
    main()
