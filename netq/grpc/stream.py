"""The half of a link that lives in the engine: two tasks, of which one reads a gRPC stream and the other writes it.

Made by a link (netq/grpc/link.py), which gives to `down` and takes from `up`; carried by the transport that has opened
the gRPC stream. It never calls the link but to wake it, and never sees what the bytes mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from netq.grpc._grpc import grpc
from netq.grpc.errors import translate
from netq.grpc.event_loop import EventLoop
from netq.grpc.packet_queue import PacketQueue
from netq.grpc.packet_size import MOST, PacketSize

_AHEAD = MOST  # bytes that may wait for the netq loop; the next packet is read only when fewer do
_PARTING = 0.8  # seconds for the last words, ours and the peer's
_BROKEN = (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)

END = b""  # on `up`: nothing more comes


class Ends(NamedTuple):
    """What grpc's two kinds of stream, a client's call and a server's context, have in common."""

    read: Callable[[], Awaitable[bytes]]  # or grpc.aio.EOF
    write: Callable[[bytes], Awaitable[None]]
    finish: Callable[[], Awaitable[None]]  # nothing more will be written


class Stream:
    """Carries packets between a gRPC stream and two belts."""

    def __init__(self, engine: EventLoop, wake_link: Callable[[], None], peer: str) -> None:
        self.down = PacketQueue(self._wake, wake_link)  # the link gives, this takes
        self.up = PacketQueue(wake_link, self._wake)  # and the other way round
        self.pace = PacketSize()
        self.error: Exception = ConnectionResetError("the peer hung up")  # what END is due to
        self._engine = engine
        self._peer = peer
        self._changed = asyncio.Event()  # a belt has
        self._closing = self._ended = False
        self._timeout: asyncio.Timeout | None = None

    def close(self) -> None:
        """Send what is on `down`, say that this is all, and end within a bound. For the link, in its thread."""
        self._engine.call(self._close)

    # In the engine.

    async def carry(self, ends: Ends) -> None:
        """Return when the stream is over in both directions, or the link has closed it."""
        writing = asyncio.create_task(self._write(ends))
        try:
            async with asyncio.timeout(_PARTING if self._closing else None) as self._timeout:
                await self._read(ends)
                self.end()
                await writing
        except TimeoutError:
            pass
        finally:
            self._timeout = None
            writing.cancel()
            self.end()

    def end(self) -> None:
        """Tell the link that nothing more comes."""
        if not self._ended:
            self._ended = True
            self.up.give(END)

    async def _read(self, ends: Ends) -> None:
        try:
            while (packet := await ends.read()) is not grpc.aio.EOF:
                if packet and not self._closing:
                    self.up.give(packet)
                while self.up.full(_AHEAD) and not self._closing:
                    await self._change()
        except grpc.RpcError as error:
            self.error = translate(error.details() or "", self._peer)

    async def _write(self, ends: Ends) -> None:
        with contextlib.suppress(*_BROKEN):  # the reader learns why
            while packet := await self._next():
                start = self._engine.loop.time()
                await ends.write(packet)
                self.pace.wrote(len(packet), self._engine.loop.time() - start)
                self.down.taken(len(packet))
            await ends.finish()

    async def _next(self) -> bytes | None:
        """The next packet; None when the link has closed and all is sent."""
        while (packet := self.down.take()) is None and not self._closing:
            await self._change()
        return packet

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _wake(self) -> None:
        self._engine.call(self._changed.set)

    def _close(self) -> None:
        self._closing = True
        self._changed.set()
        if self._timeout is not None:
            self._timeout.reschedule(self._engine.loop.time() + _PARTING)
