"""asyncio's loop.sock_sendall and loop.sock_recv_into: coroutines over a bare socket, without transports.

https://docs.python.org/3/library/asyncio-eventloop.html#working-with-socket-objects-directly, which notes
that transports are more convenient. For large messages these calls are the fastest of asyncio.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from benchmarks.peers.frames import Frames, pieces
from benchmarks.task import Place

run = asyncio.run


async def listen(place: Place, ready: Callable[[], None]) -> Wire:
    with socket.create_server((place.host, place.port)) as listener:
        listener.setblocking(False)
        ready()
        return Wire((await asyncio.get_running_loop().sock_accept(listener))[0])


async def connect(place: Place) -> Wire:
    return Wire(socket.create_connection((place.host, place.port)))


class Wire:
    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()

    async def send(self, message: Any) -> None:
        for piece in pieces(message):
            await self._loop.sock_sendall(self._sock, piece)

    async def receive(self, size: int) -> memoryview:
        while (message := self._frames.take()) is None:
            self._frames.received(await self._loop.sock_recv_into(self._sock, self._frames.free_space()))
        return message

    async def close(self) -> None:
        self._sock.close()
