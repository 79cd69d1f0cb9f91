"""Passes the bytes of connections from boards to the server and back, after a delay.

Runs in the event loop of the command, outside of the boards' cgroups. It does not limit the rate; the cables do. It
interprets no byte. It buffers little more than is on its way, so that a full cable slows the server down.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

_PIECE = 16 * 1024  # bytes read at once
_BUFFER = 64 * 1024  # bytes in the relay, each way, above those that are on their way
_UNSENT = 32 * 1024  # bytes in a socket that were not yet sent; without this, Linux would take up to 4 MiB
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST, so that the agent learns of the failure


class Relay:
    """Accepts connections at `listener`, and connects each to `server`.

    `delay` is in seconds and applies to each direction; `rate` is that of a cable, in bit/s. The caller closes
    `listener`.
    """

    def __init__(self, listener: socket.socket, server: tuple[str, int], delay: float, rate: int) -> None:
        listener.setblocking(False)
        self._listener, self._server, self._delay = listener, server, delay
        self._most = _BUFFER + round(delay * rate / 8)  # bytes in the relay, each way

    async def serve(self) -> None:
        """Pass bytes until this task is cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as links:
            # Not by `sock_accept`: if that is cancelled in the turn in which a connection comes, that one stays open.
            failed: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._listener, self._accept, links, failed)
            try:
                await failed
            finally:
                loop.remove_reader(self._listener)

    def _accept(self, links: asyncio.TaskGroup, failed: asyncio.Future[None]) -> None:
        try:
            board, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # the agent has hung up
            return
        except OSError as error:
            if not failed.done():
                failed.set_exception(error)
            return
        carrying = links.create_task(self._carry(board))
        carrying.add_done_callback(lambda _: board.close())  # a task that is cancelled before it begins does not

    async def _carry(self, board: socket.socket) -> None:
        """Pass the bytes of one connection until both sides have ended, or one has failed."""
        with board, socket.socket() as server:
            for end in (board, server):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            board.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
            try:
                await asyncio.get_running_loop().sock_connect(server, self._server)
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(_Way(self._delay, self._most).carry(board, server))
                    ways.create_task(_Way(self._delay, self._most).carry(server, board))
            except* OSError:
                for end in (board, server):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


class _Way:
    """One direction of a connection."""

    def __init__(self, delay: float, most: int) -> None:
        self._delay, self._most = delay, most
        self._pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()  # when it is due, and the bytes
        self._waiting = 0  # bytes in the queue
        self._room = asyncio.Event()  # set when a piece has left

    async def carry(self, source: socket.socket, target: socket.socket) -> None:
        """Pass bytes until the source ends, then end the target. Raises OSError if one of them fails."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._read(source))
            both.create_task(self._write(target))

    async def _read(self, source: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        data = b"?"
        while data:
            data = await loop.sock_recv(source, _PIECE)
            self._pieces.put_nowait((loop.time() + self._delay, data))
            self._waiting += len(data)
            while self._waiting > self._most:
                self._room.clear()
                await self._room.wait()

    async def _write(self, target: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        data = b"?"
        while data:
            due, data = await self._pieces.get()
            await asyncio.sleep(due - loop.time())
            await loop.sock_sendall(target, data)
            self._waiting -= len(data)
            self._room.set()
        with contextlib.suppress(OSError):  # it has ended already
            target.shutdown(socket.SHUT_WR)
