"""Two named pipes, one for each direction, used as the sockets of raw.py. https://docs.python.org/3/library/os.html

`os.readv` reads into the caller's buffer. The pipes hold 1 MiB each, the most that a user may ask for.
"""

from __future__ import annotations

import fcntl
import os
from typing import Any

from benchmarks.peers.raw import Wire
from benchmarks.task import Place

_SIZE = 1024**2


async def open(place: Place) -> Wire:
    there, back = (place.folder / f"pipe-{place.port}-{way}" for way in ("there", "back"))
    if place.is_server:
        for path in (there, back):
            os.mkfifo(path)
        place.ready()
        return Wire(Pipes(os.open(there, os.O_RDONLY), os.open(back, os.O_WRONLY)))  # opening waits for the other side
    writes = os.open(there, os.O_WRONLY)
    return Wire(Pipes(os.open(back, os.O_RDONLY), writes))


class Pipes:
    """Two descriptors with the calls of a socket."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads = reads
        self._writes = writes
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, _SIZE)

    def sendall(self, data: Any) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._writes, view) :]

    def recv_into(self, buffer: memoryview) -> int:
        return os.readv(self._reads, (buffer,))

    def close(self) -> None:
        os.close(self._reads)
        os.close(self._writes)
