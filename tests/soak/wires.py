"""The wires of the soak test, with their brokers, and the faults that each wire can have.

Called by tests/soak/run.py. A wire whose broker is not installed raises NotInstalled.
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

WIRES = ("tcp", "tls", "mqtt", "mqtt+seal", "grpc", "shm")


class NotInstalled(Exception):
    """A program that the wire needs is not installed."""


def faults(kind: str) -> frozenset[Kind]:
    """Return the faults that a wire can have."""
    return {"mqtt": BROKERED, "mqtt+seal": BROKERED, "shm": LOCAL}.get(kind, PROXIED)


@contextmanager
def opened(kind: str, files: certificates.Files, folder: Path) -> Iterator[tuple[Wire, Mosquitto | None]]:
    """Yield a wire, and its broker if it has one, which writes its files to the folder."""
    if not kind.startswith("mqtt"):
        yield Wire(kind, files), None
        return
    try:
        broker = Mosquitto(folder)
    except pytest.skip.Exception as error:
        raise NotInstalled(str(error)) from error
    with broker:
        yield Wire(kind, files, broker.netloc, f"soak/{secrets.token_hex(4)}"), broker
