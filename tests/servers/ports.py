"""Free addresses for servers of tests, and a check that a server listens."""

from __future__ import annotations

import socket

from netq import NetworkLocation

_LIMIT = 20.0  # seconds; a connection takes milliseconds

DIES_WITH_US = ("setpriv", "--pdeathsig", "TERM")  # prefix of a command, which then ends with the test process


def free() -> NetworkLocation:
    """Return an address that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return NetworkLocation(*sock.getsockname())


def listened(netloc: NetworkLocation) -> bool:
    """Return whether a server listens at `netloc`."""
    try:
        socket.create_connection(netloc, timeout=_LIMIT).close()
    except ConnectionRefusedError:
        return False
    return True
