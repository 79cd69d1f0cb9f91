"""Imports grpcio, with two settings that it reads from the environment.

GRPC_VERBOSITY: grpc's C core writes to stderr by itself (each GOAWAY, each port in use). netq logs the same events in
its own terms. GRPC_ENABLE_FORK_SUPPORT: in one of five forks of a process that uses grpc, its fork handlers abort the
child. Without them the child lives, and netq refuses to use gRPC in it.

Both are read once, while the library is loaded. They are set during the import only, and only if the user has not set
them. A program that has imported grpc before keeps its own settings.
"""

from __future__ import annotations

import os

_SETTINGS = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}

_added = {name: value for name, value in _SETTINGS.items() if name not in os.environ}
os.environ.update(_added)
try:
    import grpc
    import grpc.aio
except ImportError as error:
    raise ImportError("netq.Protocol.GRPC needs grpcio: pip install grpcio") from error
finally:
    for _name in _added:
        del os.environ[_name]

__all__ = ["grpc"]
