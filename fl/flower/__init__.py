"""Flower on netq: Flower's ServerApps and ClientApps over netq's transports, and fl's kernels in Flower's strategies.

fl.flower.run(server_app, options)                   # on the server; options are netq's, and so is protocol=
fl.flower.Node(client_app).run(options)              # on each device, until the run is over
fl.flower.simulate(server_app, client_app, nodes=10) # both, in processes of this machine
fl.flower.AppFolder.load(path)                       # both apps and their config, from a folder of Flower's
fl.flower.FedAvg()                                   # a Flower strategy that folds replies as they arrive

`import fl` does not import this package, and needs no Flower. docs/how-to/flower.md explains how to use it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl.flower._compat import KNOWN as KNOWN
    from fl.flower.app_folder import AppFolder as AppFolder
    from fl.flower.apps import ClientApp as ClientApp
    from fl.flower.apps import ServerApp as ServerApp
    from fl.flower.grid import Grid as Grid
    from fl.flower.kernel_strategy import FedAvg as FedAvg
    from fl.flower.kernel_strategy import Kernel as Kernel
    from fl.flower.messages import node_id as node_id
    from fl.flower.node import Node as Node
    from fl.flower.record_codec import Array as Array
    from fl.flower.record_codec import arrays as arrays
    from fl.flower.replies import Streamed as Streamed
    from fl.flower.runner import run as run
    from fl.flower.runner import simulate as simulate
    from fl.flower.signed_app import ReceivedApps as ReceivedApps
    from fl.flower.signed_app import SignedApp as SignedApp

# Of the public names. They are imported when they are first used: what moves messages needs neither Flower nor numpy.
_MODULES = {
    "fl.flower._compat": ("KNOWN",),
    "fl.flower.app_folder": ("AppFolder",),
    "fl.flower.apps": ("ClientApp", "ServerApp"),
    "fl.flower.grid": ("Grid",),
    "fl.flower.messages": ("node_id",),
    "fl.flower.kernel_strategy": ("FedAvg", "Kernel"),
    "fl.flower.node": ("Node",),
    "fl.flower.record_codec": ("Array", "arrays"),
    "fl.flower.replies": ("Streamed",),
    "fl.flower.runner": ("run", "simulate"),
    "fl.flower.signed_app": ("ReceivedApps", "SignedApp"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fl.flower' has no attribute {name!r}")
    importlib.import_module("fl.flower._compat")  # first: it refuses an unknown release of Flower
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value
