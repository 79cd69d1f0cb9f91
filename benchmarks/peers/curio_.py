"""Curio's sockets: `sendall`, and `recv_into` a reused buffer.

https://curio.readthedocs.io/en/latest/reference.html#socket: the calls of the socket module, awaited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import curio
from curio import socket

from benchmarks.peers.frames import Frames, pieces
from benchmarks.task import Place

run = curio.run


async def listen(place: Place, ready: Callable[[], None]) -> Wire:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((place.host, place.port))
    listener.listen(1)
    ready()
    async with listener:
        return Wire((await listener.accept())[0])


async def connect(place: Place) -> Wire:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    await sock.connect((place.host, place.port))
    return Wire(sock)


class Wire:
    def __init__(self, sock: Any) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._frames = Frames()

    async def send(self, message: Any) -> None:
        for piece in pieces(message):
            await self._sock.sendall(piece)

    async def receive(self, size: int) -> memoryview:
        while (message := self._frames.take()) is None:
            self._frames.received(await self._sock.recv_into(self._frames.free_space()))
        return message

    async def close(self) -> None:
        await self._sock.close()
