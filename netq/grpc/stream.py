"""The part of a link that runs in grpc's event loop: one task reads a gRPC stream, another one writes it.

A link (netq/grpc/link.py) makes it, puts packets into `outgoing` and takes them from `incoming`. The transport that has
opened the gRPC stream runs `carry`. The stream does not interpret bytes, and calls the link only to wake it.
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

_READ_AHEAD = MOST  # bytes that may wait for the netq loop; with more, no further packet is read
_CLOSE_TIMEOUT = 0.8  # seconds for the last packets of both sides
_BROKEN = (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)

END = b""  # the last packet of `incoming`


class StreamFunctions(NamedTuple):
    """The functions of a gRPC stream: of a client's call or a server's context."""

    read: Callable[[], Awaitable[bytes]]  # returns grpc.aio.EOF at the end
    write: Callable[[bytes], Awaitable[None]]
    finish: Callable[[], Awaitable[None]]  # closes the direction of sending


class Stream:
    """Carries packets between a gRPC stream and two queues."""

    def __init__(self, event_loop: EventLoop, wake_link: Callable[[], None], peer: str) -> None:
        self.outgoing = PacketQueue(self._wake, wake_link)
        self.incoming = PacketQueue(wake_link, self._wake)
        self.packet_size = PacketSize()
        self.error: Exception = ConnectionResetError("the peer hung up")  # the reason for END
        self._event_loop = event_loop
        self._peer = peer
        self._changed = asyncio.Event()  # a queue has
        self._closing = self._ended = False
        self._timeout: asyncio.Timeout | None = None

    def close(self) -> None:
        """Send the packets of `outgoing`, finish, and end within _CLOSE_TIMEOUT. Called in the link's thread."""
        self._event_loop.call(self._close)

    # The methods below run in the event loop.

    async def carry(self, functions: StreamFunctions) -> None:
        """Move packets until both directions have ended, or the link has closed the stream."""
        # The reader decides when the stream is over, as only it sees why. END is put once in any case, also when this
        # task is cancelled: it is what tells the link of the end, behind the last packet that has come.
        writing = asyncio.create_task(self._write(functions))
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT if self._closing else None) as self._timeout:
                await self._read(functions)
                self.end()
                await writing
        except TimeoutError:
            pass
        finally:
            self._timeout = None
            writing.cancel()
            self.end()

    def end(self) -> None:
        """Put END into `incoming`, once."""
        if not self._ended:
            self._ended = True
            self.incoming.put(END)

    async def _read(self, functions: StreamFunctions) -> None:
        try:
            while (packet := await functions.read()) is not grpc.aio.EOF:
                if packet and not self._closing:
                    self.incoming.put(packet)
                while self.incoming.is_full(_READ_AHEAD) and not self._closing:
                    await self._change()
        except grpc.RpcError as error:
            self.error = translate(error.details() or "", self._peer)

    async def _write(self, functions: StreamFunctions) -> None:
        with contextlib.suppress(*_BROKEN):  # _read reports the reason
            # `processed` comes after the write, so at most one packet is being written and one waits. The rest stays in
            # the session, where a later message can still overtake it, and a cancelled one can still be taken back.
            while packet := await self._next():
                start = self._event_loop.loop.time()
                await functions.write(packet)
                self.packet_size.measured(len(packet), self._event_loop.loop.time() - start)
                self.outgoing.processed(len(packet))
            await functions.finish()

    async def _next(self) -> bytes | None:
        """Return the next packet to write; None when the link has closed and all packets are sent."""
        while (packet := self.outgoing.take()) is None and not self._closing:
            await self._change()
        return packet

    async def _change(self) -> None:
        # No wake-up is lost between the caller's look at its queue and this `clear`: `set` runs as a call of the event
        # loop, and no such call runs before the next `await`. Both tasks use one event, and each looks at its own queue
        # again; a task that is not waiting now looks there before it waits.
        self._changed.clear()
        await self._changed.wait()

    def _wake(self) -> None:
        self._event_loop.call(self._changed.set)

    def _close(self) -> None:
        self._closing = True
        self._changed.set()
        if self._timeout is not None:
            self._timeout.reschedule(self._event_loop.loop.time() + _CLOSE_TIMEOUT)
