"""Tornado's IOStream: `write` of a memoryview, which is not copied, and `read_into` a reused buffer.

https://www.tornadoweb.org/en/stable/iostream.html#tornado.iostream.BaseIOStream.read_into. `max_buffer_size` must
be at least the size of a message. The chunk size is the default: at most 64 KiB for each read.
"""

from __future__ import annotations

from typing import Any

from tornado.iostream import IOStream

from benchmarks.peers.frames import AHEAD, HEADER, pieces
from benchmarks.peers.tcp import tcp_socket
from benchmarks.task import Place


async def open(place: Place) -> Wire:
    return Wire(IOStream(tcp_socket(place), max_buffer_size=2**32))


class Wire:
    def __init__(self, stream: IOStream) -> None:
        self._stream = stream
        self._view = memoryview(bytearray(AHEAD))

    async def send(self, message: Any) -> None:
        for piece in pieces(message):
            await self._stream.write(piece)

    async def receive(self, size: int) -> memoryview:
        (length,) = HEADER.unpack(await self._stream.read_bytes(HEADER.size))
        if len(self._view) < length:
            self._view = memoryview(bytearray(length))
        view = self._view[:length]
        await self._stream.read_into(view)  # type: ignore[arg-type,unused-ignore]
        return view

    async def close(self) -> None:
        self._stream.close()
