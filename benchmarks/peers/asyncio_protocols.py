"""asyncio's Protocol: the loop calls `data_received` with new bytes. And what asyncio_buffered.py shares with it.

https://docs.python.org/3/library/asyncio-protocol.html#streaming-protocols: the low-level way. The bytes that come are
copied into a buffer that is used again. Messages are written in slices, because what the socket does not take at once
is copied: https://docs.python.org/3/library/asyncio-protocol.html#asyncio.WriteTransport.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from benchmarks.peers.frames import Frames, pieces
from benchmarks.task import Place

run = asyncio.run


async def listen(place: Place, ready: Callable[[], None]) -> Ends:
    return await listen_with(Wire, place, ready)


async def connect(place: Place) -> Ends:
    return await connect_with(Wire, place)


async def listen_with(kind: Callable[[], Any], place: Place, ready: Callable[[], None]) -> Ends:
    """Accept one connection for a protocol of this kind."""
    came: asyncio.Future[Ends] = asyncio.get_running_loop().create_future()

    def make() -> Any:
        wire = kind()
        came.set_result(wire)
        return wire

    server = await asyncio.get_running_loop().create_server(make, place.host, place.port)
    ready()
    wire = await came
    await wire.made
    server.close()
    return _tuned(wire, place)


async def connect_with(kind: Callable[[], Any], place: Place) -> Ends:
    """Connect a protocol of this kind."""
    return _tuned((await asyncio.get_running_loop().create_connection(kind, place.host, place.port))[1], place)


def _tuned(wire: Ends, place: Place) -> Ends:
    if place.variant == "reno":
        wire.socket().setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    return wire


class Ends:
    """All of a protocol but how bytes come."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._new_future = loop.create_future
        self._frames = Frames()
        self._waiting: asyncio.Future[memoryview] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self.made: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()

    async def send(self, message: Any) -> None:
        for piece in pieces(message):
            self._transport.write(piece)
            if not self._room.is_set():
                await self._room.wait()

    async def receive(self, size: int) -> memoryview:
        came = self._frames.take()
        if came is None:
            self._waiting = self._new_future()
            self._transport.resume_reading()
            came = await self._waiting
        return came

    async def close(self) -> None:
        self._transport.close()
        await self._ended

    def socket(self) -> Any:
        return self._transport.get_extra_info("socket")

    # For the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self.made.set_result(None)

    def arrived(self) -> None:
        """Serve the reader that waits, now that more bytes are there."""
        if self._waiting is not None and (came := self._frames.take()) is not None:
            self._waiting.set_result(came)
            self._waiting = None
        if self._frames.full:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set_result(None)
        if self._waiting is not None:
            self._waiting.set_exception(error or EOFError("the other side has closed"))


class Wire(Ends, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        self.arrived()
