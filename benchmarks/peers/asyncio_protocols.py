"""asyncio's protocols: the event loop calls `data_received` with new bytes, or "buffered" reads into our buffer.

https://docs.python.org/3/library/asyncio-protocol.html: the low-level API. Of Protocol, received bytes are copied into
a reused buffer; BufferedProtocol, which uvloop runs too, "can be used to reduce the number of copies". Messages are
written in slices, because asyncio copies what the socket does not accept at once (asyncio.WriteTransport). The variant
"reno" is buffered, and uses reno instead of BBR, which paces, as "sliced" does (raw.py).
https://uvloop.readthedocs.io/user/index.html: its README measures that protocols are the fastest API.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from benchmarks.peers.frames import Frames, pieces
from benchmarks.peers.tcp import tcp_socket
from benchmarks.task import Place


async def open(place: Place) -> FramedProtocol:
    sock, kind = tcp_socket(place), Buffered if place.variant else Wire
    if place.variant == "reno":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    _, wire = await asyncio.get_running_loop().create_connection(kind, sock=sock)
    return cast(FramedProtocol, wire)


class FramedProtocol:
    """A protocol that sends and receives frames. A subclass receives the bytes."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._new_future = loop.create_future
        self._frames = Frames()
        self._waiting: asyncio.Future[memoryview] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
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

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

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


class Buffered(FramedProtocol, asyncio.BufferedProtocol):
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        self._frames.received(nbytes)
        self.serve_reader()
