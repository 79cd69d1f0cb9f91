"""netq's ring of shared memory alone (netq/shm/ring.py), between two processes that spin: no wake-ups, no session.

The comparison is that of Jocket with a TCP socket: https://github.com/pcdv/jocket. The fence is that of netq.
"""

from __future__ import annotations

import mmap
from typing import Any

from benchmarks.task import Place
from netq.shm.fence import make_fence
from netq.shm.ring import HEADER, Reader, Writer

SIZE = HEADER + 64 * 1024


async def open(place: Place) -> Wire:
    path = place.folder / f"ring-{place.port}"
    if place.is_server:
        path.write_bytes(bytes(2 * SIZE))
        place.ready()
    with path.open("r+b") as file:
        return Wire(memoryview(mmap.mmap(file.fileno(), 2 * SIZE)), sends=int(place.is_server))


class Wire:
    def __init__(self, memory: memoryview, sends: int) -> None:
        halves = [memory[:SIZE], memory[SIZE:]]
        self._writer = Writer(halves[sends], make_fence())
        self._reader = Reader(halves[1 - sends], make_fence())
        self._view = memoryview(bytearray(SIZE))

    async def send(self, message: Any) -> None:
        sent = self._writer.write((message,))
        while sent < len(message):
            sent += self._writer.write((message[sent:],))

    async def receive(self, size: int) -> memoryview:
        ready, read_into = self._reader.available, self._reader.read_into
        if len(self._view) < size:
            self._view = memoryview(bytearray(size))
        view = self._view[:size]
        got = 0
        while got < size:
            if ready():
                got += read_into(view[got:])
        return view

    async def close(self) -> None:
        self._writer.release()
        self._reader.release()
