"""asyncio's Protocol: the event loop calls `data_received` with new bytes. Base of asyncio_buffered.py too.

https://docs.python.org/3/library/asyncio-protocol.html#streaming-protocols: the low-level API. Received bytes
are copied into a reused buffer. Messages are written in slices, because asyncio copies what the socket does not accept
at once: https://docs.python.org/3/library/asyncio-protocol.html#asyncio.WriteTransport.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from benchmarks.peers.frames import Frames, pieces
from benchmarks.task import Place

run = asyncio.run


async def listen(place: Place, ready: Callable[[], None]) -> FramedProtocol:
    return await listen_with(Wire, place, ready)


async def connect(place: Place) -> FramedProtocol:
    return await connect_with(Wire, place)


async def listen_with(kind: Callable[[], Any], place: Place, ready: Callable[[], None]) -> FramedProtocol:
    """Accept one connection for a protocol of this kind."""
    accepted: asyncio.Future[FramedProtocol] = asyncio.get_running_loop().create_future()

    def make() -> Any:
        wire = kind()
        accepted.set_result(wire)
        return wire

    server = await asyncio.get_running_loop().create_server(make, place.host, place.port)
    ready()
    wire = await accepted
    await wire.connected
    server.close()
    return _tuned(wire, place)


async def connect_with(kind: Callable[[], Any], place: Place) -> FramedProtocol:
    """Connect a protocol of this kind."""
    return _tuned((await asyncio.get_running_loop().create_connection(kind, place.host, place.port))[1], place)


def _tuned(wire: FramedProtocol, place: Place) -> FramedProtocol:
    if place.variant == "reno":
        wire.socket().setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    return wire


class FramedProtocol:
    """A protocol that sends and receives frames. A subclass receives the bytes."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._new_future = loop.create_future
        self._frames = Frames()
        self._waiting: asyncio.Future[memoryview] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.connected: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()

    async def send(self, message: Any) -> None:
        for piece in pieces(message):
            self._transport.write(piece)
            if not self._writable.is_set():
                await self._writable.wait()

    async def receive(self, size: int) -> memoryview:
        message = self._frames.take()
        if message is None:
            self._waiting = self._new_future()
            self._transport.resume_reading()
            message = await self._waiting
        return message

    async def close(self) -> None:
        self._transport.close()
        await self._ended

    def socket(self) -> Any:
        return self._transport.get_extra_info("socket")

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self.connected.set_result(None)

    def serve_reader(self) -> None:
        """Pass a complete message to the task that waits in `receive`; pause reading if the buffer is full."""
        if self._waiting is not None and (message := self._frames.take()) is not None:
            self._waiting.set_result(message)
            self._waiting = None
        if self._frames.full:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set_result(None)
        if self._waiting is not None:
            self._waiting.set_exception(error or EOFError("the other side has closed"))


class Wire(FramedProtocol, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        self.serve_reader()
