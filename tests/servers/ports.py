"""Where a server of a test may listen, and whether it does; and how it ends with the tests."""

from __future__ import annotations

import socket

from netq import NetworkLocation

_LIMIT = 20.0  # seconds for what takes milliseconds

DIES_WITH_US = ("setpriv", "--pdeathsig", "TERM")  # before a command: it ends even if the tests crash


def free() -> NetworkLocation:
    """Return an address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return NetworkLocation(*sock.getsockname())


def listened(netloc: NetworkLocation) -> bool:
    """Return whether somebody listens there."""
    try:
        socket.create_connection(netloc, timeout=_LIMIT).close()
    except ConnectionRefusedError:
        return False
    return True
