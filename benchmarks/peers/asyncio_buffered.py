"""asyncio's BufferedProtocol: the loop reads into memory of ours, which is used again.

https://docs.python.org/3/library/asyncio-protocol.html#buffered-streaming-protocols: "can be used to reduce the number
of copies"; also under uvloop. Large messages are written in slices, because what the socket does not take at once
is copied: https://docs.python.org/3/library/asyncio-protocol.html#asyncio.WriteTransport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from benchmarks.peers.raw import AHEAD
from benchmarks.task import Place

SLICE = 1024**2  # bytes
run = asyncio.run


async def listen(place: Place, ready: Callable[[], None]) -> Wire:
    came: asyncio.Future[Wire] = asyncio.get_running_loop().create_future()
    server = await asyncio.get_running_loop().create_server(lambda: Wire(came), place.host, place.port)
    ready()
    wire = await came
    server.close()
    return wire


async def connect(place: Place) -> Wire:
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(lambda: Wire(loop.create_future()), place.host, place.port))[1]


class Wire(asyncio.BufferedProtocol):
    def __init__(self, came: asyncio.Future[Wire]) -> None:
        self._came = came
        self._view = memoryview(bytearray(AHEAD))
        self._start = self._stop = 0  # of what was read and not taken yet
        self._missing = 0  # bytes that must be there for who waits
        self._waiting: asyncio.Future[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._ended = asyncio.get_running_loop().create_future()

    async def send(self, message: Any) -> None:
        view = memoryview(message)
        for start in range(0, len(view), SLICE):
            self._transport.write(view[start : start + SLICE])
            if not self._room.is_set():
                await self._room.wait()

    async def receive(self, size: int) -> memoryview:
        if self._stop - self._start < size:
            self._make_room(size)
            self._missing = size
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        start, self._start = self._start, self._start + size
        return self._view[start : self._start]

    async def close(self) -> None:
        self._transport.close()
        await self._ended

    def _make_room(self, size: int) -> None:
        left = self._stop - self._start
        if len(self._view) < size:
            grown = memoryview(bytearray(size))
            grown[:left] = self._view[self._start : self._stop]
            self._view = grown
        else:
            self._view[:left] = self._view[self._start : self._stop]
        self._start, self._stop = 0, left
        self._transport.resume_reading()

    # For the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._came.set_result(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._stop :]

    def buffer_updated(self, nbytes: int) -> None:
        self._stop += nbytes
        if self._stop == len(self._view):
            self._transport.pause_reading()
        if self._waiting is not None and self._stop - self._start >= self._missing:
            self._waiting.set_result(None)
            self._waiting = None

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set_result(None)
        if self._waiting is not None:
            self._waiting.set_exception(error or EOFError("the other side has closed"))
