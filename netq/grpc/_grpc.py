"""The third-party library, imported for this package once, and told two things that it takes from the environment.

GRPC_VERBOSITY: its C core writes to stderr by itself (each GOAWAY, each port that is taken), in words that are not the
user's; netq says the same in its own log. GRPC_ENABLE_FORK_SUPPORT: its handlers of a fork end the child of a process
that is using it by an abort, one time in five; without them it lives, and netq tells it that it cannot use gRPC.

Both are read once, when the library is loaded. So they are set for that moment, unless the user has set them, and taken
back, for they are nobody else's. A program that has imported grpc before has what it has chosen.
"""

from __future__ import annotations

import os

_TOLD = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}

_ours = {name: value for name, value in _TOLD.items() if name not in os.environ}
os.environ.update(_ours)
try:
    import grpc
    import grpc.aio
except ImportError as error:
    raise ImportError("netq.Protocol.GRPC needs grpcio: pip install grpcio") from error
finally:
    for _name in _ours:
        del os.environ[_name]

__all__ = ["grpc"]
