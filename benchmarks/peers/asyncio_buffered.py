"""asyncio's BufferedProtocol: the event loop reads into our buffer, which is reused. See asyncio_protocols.py.

https://docs.python.org/3/library/asyncio-protocol.html#buffered-streaming-protocols: "can be used to reduce the number
of copies". uvloop_.py runs it too. The variant "reno" uses reno instead of BBR, which paces, as "sliced" does (raw.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from benchmarks.peers.asyncio_protocols import FramedProtocol, connect_with, listen_with
from benchmarks.task import Place

run = asyncio.run


async def listen(place: Place, ready: Callable[[], None]) -> FramedProtocol:
    return await listen_with(Wire, place, ready)


async def connect(place: Place) -> FramedProtocol:
    return await connect_with(Wire, place)


class Wire(FramedProtocol, asyncio.BufferedProtocol):
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        self._frames.received(nbytes)
        self.serve_reader()
