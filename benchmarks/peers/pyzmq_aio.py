"""ØMQ by pyzmq in asyncio. Objects are pickled, as by `send_pyobj` and `recv_pyobj`, which it has, too.

https://pyzmq.readthedocs.io/en/latest/api/zmq.asyncio.html. A socket of ØMQ belongs to one thread, so a task in which
one side sends and receives at the same time needs this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import zmq.asyncio

from benchmarks.task import Place

run = asyncio.run


async def listen(place: Place, ready: Callable[[], None]) -> Wire:
    wire = Wire()
    wire.sock.bind(f"tcp://{place.host}:{place.port}")
    ready()
    return wire


async def connect(place: Place) -> Wire:
    wire = Wire()
    wire.sock.connect(f"tcp://{place.host}:{place.port}")
    return wire


class Wire:
    def __init__(self) -> None:
        self._context = zmq.asyncio.Context()
        self.sock = self._context.socket(zmq.PAIR)

    async def send(self, message: Any) -> None:
        await self.sock.send_pyobj(message)

    async def receive(self, size: int) -> Any:
        return await self.sock.recv_pyobj()

    async def close(self) -> None:
        self.sock.close()
        self._context.term()  # waits until all messages have been sent
