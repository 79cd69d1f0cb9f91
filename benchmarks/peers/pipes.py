"""Two pipes, one each way, as between processes that have no other connection: bytes, no framing and no serialisation.

https://docs.python.org/3/library/os.html#os.mkfifo, https://man7.org/linux/man-pages/man7/pipe.7.html: a named pipe is
a pipe that two processes open by its name. Its capacity is set to 1 MiB, the most that a user may have by default.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from typing import Any

from benchmarks.peers.raw import Wire
from benchmarks.task import Place

CAPACITY = 1024**2


def listen(place: Place, ready: Callable[[], None]) -> Wire:
    for way in ("up", "down"):
        os.mkfifo(_path(place, way))
    ready()
    reads = os.open(_path(place, "up"), os.O_RDONLY)
    return Wire(Pipes(reads, os.open(_path(place, "down"), os.O_WRONLY)))


def connect(place: Place) -> Wire:
    writes = os.open(_path(place, "up"), os.O_WRONLY)
    return Wire(Pipes(os.open(_path(place, "down"), os.O_RDONLY), writes))


def _path(place: Place, way: str) -> str:
    return str(place.folder / f"pipe-{place.port}-{way}")


class Pipes:
    """Two pipes as a socket."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, CAPACITY)

    def sendall(self, data: Any) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._writes, view) :]

    def recv_into(self, view: memoryview) -> int:
        return os.readv(self._reads, [view])

    def close(self) -> None:
        os.close(self._reads)
        os.close(self._writes)
