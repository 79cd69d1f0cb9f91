"""Three rounds of a federation with one device, whose agent another machine runs: for tests/aarch64.sh.

    python -m tests.board FOLDER

Writes the device's file and its certificates to FOLDER. Fails if the device does not take part, or if the link is not
mutual TLS with a post-quantum key exchange.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import fl
import netq
from netq.security import certificates

DEVICE = """\
[server]
host = "localhost"
port = {port}
[client]
train = "tests.edge.training:train"
[security]
key = "board-key.pem"
certificate = "board.pem"
authority = "authority.pem"
post_quantum = "require"
"""


def main(folder: Path) -> None:
    files = certificates.init(folder)
    certificates.issue(folder, "board")
    security = netq.SecurityOptions(files.key, files.certificate, files.authority)
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("localhost", 0), security=security)
    with fl.Server({"w": np.zeros(3, np.float32)}, options, min_clients=1) as server:
        (folder / "client.toml").write_text(DEVICE.format(port=server.netloc.port))
        for report in server.rounds(3):
            print(f"{report}; {[str(peer.security) for peer in server.statistics().values()]}", flush=True)
        assert server.model["w"].tolist() == [3, 3, 3]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
