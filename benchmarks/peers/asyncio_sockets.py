"""asyncio's loop.sock_sendall and loop.sock_recv_into: coroutines over a bare socket, without transports.

https://docs.python.org/3/library/asyncio-eventloop.html#working-with-socket-objects-directly, which notes
that transports are more convenient. For large messages these calls are the fastest of asyncio.
"""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.peers.frames import Frames, pieces
from benchmarks.peers.tcp import tcp_socket
from benchmarks.task import Place


async def open(place: Place) -> Wire:
    return Wire(place)


class Wire:
    def __init__(self, place: Place) -> None:
        self._sock = tcp_socket(place)
        self._sock.setblocking(False)
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
