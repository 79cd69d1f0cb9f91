"""The options of ring sockets: checks them, with errors that name them. All checks raise InvalidOption."""

from __future__ import annotations

import os
from typing import TypeAlias

from netq.io.spin import spin_seconds
from netq.options import NetworkLocation
from netq.shm import rendezvous
from netq.shm.control import MAX_RING, MIN_RING
from netq.validate import expect, is_whole, seconds

Address: TypeAlias = str | os.PathLike[str] | tuple[str, int]

SIZE = 256 * 1024  # bytes of a ring, with the header: room for pieces that are read while others are written
SPIN = 50e-6  # seconds; `python -m benchmarks ring-spin` measures it
_MAX_SPIN = 1.0  # seconds: a longer wait is for the system
_MAX_TIMEOUT = 1e6  # seconds: the system counts milliseconds in 31 bits


def read_address(address: Address, least_port: int) -> NetworkLocation:
    """Check an address, and this system; return it as a NetworkLocation."""
    rendezvous.check_system("netq.shm.ring_socket", "a Unix socket or a pure ring (docs/how-to/ring.md)")
    if isinstance(address, os.PathLike):
        address = os.fspath(address)
    if isinstance(address, str) and address.startswith("/"):
        netloc = NetworkLocation(address, 0)
    else:
        right = isinstance(address, tuple) and len(address) == 2 and isinstance(address[0], str)
        right = right and address[0] != "" and is_whole(address[1], least_port, 65535)
        example = '"/run/user/1000/ring" or ("localhost", 51966)'
        expect(
            right,
            "address",
            address,
            f"an absolute path, or a host and a port from {least_port} to 65535, as in {example}",
        )
        netloc = NetworkLocation(*address)
    rendezvous.check_local(netloc, "address")
    if least_port:
        rendezvous.check_client(netloc, "address")
    return netloc


def read_spin(spin: float) -> float:
    """Check the option; return the seconds to spin."""
    seconds("spin", spin, 0, _MAX_SPIN)
    return spin_seconds(spin)


def check_timeout(timeout: float | None) -> None:
    """Check the seconds of a timeout."""
    if timeout is not None:
        seconds("timeout", timeout, 0, _MAX_TIMEOUT)


def check_size(size: int) -> None:
    """Check the bytes of a ring."""
    right = is_whole(size, MIN_RING, MAX_RING) and size % MIN_RING == 0
    expect(right, "size", size, f"a multiple of {MIN_RING} from {MIN_RING} to {MAX_RING}")
