"""Curio's sockets: `sendall`, and `recv_into` a reused buffer.

https://curio.readthedocs.io/en/latest/reference.html#socket: the calls of the socket module, awaited.
"""

from __future__ import annotations

from typing import Any

from curio.io import Socket

from benchmarks.peers.frames import Frames, pieces
from benchmarks.peers.tcp import tcp_socket
from benchmarks.task import Place


async def open(place: Place) -> Wire:
    return Wire(Socket(tcp_socket(place)))


class Wire:
    def __init__(self, sock: Any) -> None:
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
