"""The server: fits a line to the data of two devices, over mutual TLS."""

from pathlib import Path

import numpy as np

import fl
import netq

FILES = Path("certificates")

options = netq.CommunicatorOptions(
    netloc=netq.NetworkLocation("127.0.0.1", 51966),
    security=netq.SecurityOptions(
        key=FILES / "server-key.pem",
        certificate=FILES / "server.pem",
        authority=FILES / "authority.pem",  # of the devices' certificates
        revoked=FILES / "revoked.txt",
    ),
)
with fl.Server({"line": np.zeros(2, np.float32)}, options, min_clients=2) as server:
    server.wait(2)
    for device, statistics in server.statistics().items():
        security = statistics.security
        print(f"{device}: {security.version}, {security.cipher}, {security.group}")
    for report in server.rounds(3):
        print(report)
    slope, offset = server.model["line"]
    print(f"y = {slope:.1f} x + {offset:.1f}")
