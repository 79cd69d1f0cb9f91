"""Flower on netq: Flower's ServerApps and ClientApps over netq's transports, and fl's kernels in Flower's strategies.

fl.flower.run(server_app, options)                   # on the server; options are netq's, and so is protocol=
fl.flower.Node(client_app).run(options)              # on each device, until the run is over
fl.flower.simulate(server_app, client_app, nodes=10) # both, in processes of this machine
fl.flower.AppFolder.load(path)                       # both apps and their config, from a folder of Flower's
fl.flower.FedAvg()                                   # a Flower strategy that folds replies as they arrive

`import fl` does not import this package, and needs no Flower. docs/how-to/flower.md explains how to use it.
"""

from __future__ import annotations

from fl.flower._compat import KNOWN
from fl.flower.app_folder import AppFolder
from fl.flower.apps import ClientApp, ServerApp
from fl.flower.grid import Grid
from fl.flower.grid_messages import node_id
from fl.flower.kernel_strategy import FedAvg, Kernel
from fl.flower.node import Node
from fl.flower.record_codec import Array, arrays
from fl.flower.replies import Streamed
from fl.flower.runner import run
from fl.flower.signed_app import ReceivedApps, SignedApp
from fl.flower.simulation import simulate

__all__ = [
    "run",
    "Node",
    "simulate",
    "AppFolder",
    "FedAvg",
    "Grid",
    "Streamed",
    "Array",
    "arrays",
    "ClientApp",
    "Kernel",
    "KNOWN",
    "ReceivedApps",
    "ServerApp",
    "SignedApp",
    "node_id",
]
