"""asyncio's BufferedProtocol: the loop reads into memory of ours, which is used again. See asyncio_protocols.py.

https://docs.python.org/3/library/asyncio-protocol.html#buffered-streaming-protocols: "can be used to reduce the number
of copies"; also under uvloop. The variant "reno" is without the pacing of BBR, as raw.py's "sliced" is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from benchmarks.peers.asyncio_protocols import Ends, connect_with, listen_with
from benchmarks.task import Place

run = asyncio.run


async def listen(place: Place, ready: Callable[[], None]) -> Ends:
    return await listen_with(Wire, place, ready)


async def connect(place: Place) -> Ends:
    return await connect_with(Wire, place)


class Wire(Ends, asyncio.BufferedProtocol):
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._frames.came(nbytes)
        self.arrived()
