"""netq's ring socket (netq/shm/ring_socket.py), used as bare sockets are in raw.py.

The variant is the microseconds for which each wait spins, and then the KiB of the pieces in which it copies: "0" sleeps
at once, "50 128" copies 128 KiB at once. What is not there is the default.
"""

from __future__ import annotations

from benchmarks.peers.raw import Wire
from benchmarks.task import Place
from netq.shm import ring_options, ring_socket, waiting


async def open(place: Place) -> Wire:
    path, given = str(place.folder / f"ring-socket-{place.port}"), place.variant.split()
    spin = float(given[0]) / 1e6 if given else ring_options.SPIN
    if given[1:]:
        waiting.PIECE = int(given[1]) * 1024
    if not place.is_server:
        return Wire(ring_socket.connect(path, spin=spin))
    with ring_socket.listen(path, spin=spin) as listener:
        place.ready()
        return Wire(listener.accept())
