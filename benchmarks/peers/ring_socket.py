"""netq's ring socket (netq/shm/ring_socket.py), used as bare sockets are in raw.py.

The variant is the microseconds for which each wait spins, and then the KiB of the pieces in which it copies: "0" sleeps
at once, "50 128" copies 128 KiB at once. What is not there is the default.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.peers.raw import Wire
from benchmarks.task import Place
from netq.shm import ring_options, ring_socket, waiting


def listen(place: Place, ready: Callable[[], None]) -> Wire:
    with ring_socket.listen(_path(place), spin=_spin(place)) as listener:
        ready()
        return Wire(listener.accept())


def connect(place: Place) -> Wire:
    return Wire(ring_socket.connect(_path(place), spin=_spin(place)))


def _path(place: Place) -> str:
    return str(place.folder / f"ring-socket-{place.port}")


def _spin(place: Place) -> float:
    spin, piece, *_ = [*place.variant.split(), "", ""]
    if piece:
        waiting.PIECE = int(piece) * 1024
    return float(spin) / 1e6 if spin else ring_options.SPIN
