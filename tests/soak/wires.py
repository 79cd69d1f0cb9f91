"""The wires of the soak: what each needs beside a communicator, and which faults there are on it.

Called by tests/soak/run.py. A wire that cannot be had here, as its broker is not installed, raises NotHere.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from netq.security import certificates
from tests.servers.mosquitto import Mosquitto
from tests.soak.schedule import BROKERED, LOCAL, PROXIED, Kind
from tests.wires import Wire

WIRES = ("tcp", "tls", "mqtt", "grpc", "shm")


class NotHere(Exception):
    """What a wire needs is not installed."""


def faults(kind: str) -> frozenset[Kind]:
    """Return what can happen on a wire."""
    return {"mqtt": BROKERED, "shm": LOCAL}.get(kind, PROXIED)


@contextmanager
def opened(kind: str, files: certificates.Files, folder: Path) -> Iterator[tuple[Wire, Mosquitto | None]]:
    """Give a wire, and the broker if it has one, which has a place in the folder for what it writes."""
    if kind != "mqtt":
        yield Wire(kind, files), None
        return
    try:
        broker = Mosquitto(folder)
    except pytest.skip.Exception as error:
        raise NotHere(str(error)) from error
    with broker:
        yield Wire(kind, files, broker.netloc, f"soak/{secrets.token_hex(4)}"), broker
