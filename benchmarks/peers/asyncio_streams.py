"""asyncio's streams: `write` and `drain`; `readexactly` for small messages, `read` for large ones.

https://docs.python.org/3/library/asyncio-stream.html: the high-level API. Large messages are read in pieces into a
reused buffer, because `readexactly` of 100 MB needs four times the processor time. The stream's limit (64 KiB) is
raised: with the default, reading is paused and resumed for each 128 KiB.
"""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.peers.frames import AHEAD, HEADER, pieces
from benchmarks.peers.tcp import tcp_socket
from benchmarks.task import Place

LIMIT = 4 * 1024**2  # bytes


async def open(place: Place) -> Wire:
    return Wire(*await asyncio.open_connection(sock=tcp_socket(place), limit=LIMIT))


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._view = memoryview(bytearray(AHEAD))

    async def send(self, message: Any) -> None:
        for piece in pieces(message):
            self._writer.write(piece)
            await self._writer.drain()

    async def receive(self, size: int) -> bytes | memoryview:
        (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        if length <= AHEAD:
            return await self._reader.readexactly(length)
        if len(self._view) < length:
            self._view = memoryview(bytearray(length))
        got = 0
        while got < length:
            data = await self._reader.read(min(length - got, AHEAD))
            if not data:
                raise EOFError("the other side has closed")
            self._view[got : got + len(data)] = data
            got += len(data)
        return self._view[:length]

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()
