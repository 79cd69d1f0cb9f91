"""ØMQ by pyzmq. Large messages with copy=False, objects with send_pyobj and recv_pyobj; "aio" is zmq.asyncio.

https://pyzmq.readthedocs.io/en/latest/howto/serialization.html: `send(array, copy=False)` and
`recv(copy=False)` for arrays, without the header with dtype and shape of that page. The limit of waiting messages
(1,000 on each side) is the default. A socket of ØMQ belongs to one thread, so a load needs "aio".
"""

from __future__ import annotations

from typing import Any

import zmq
import zmq.asyncio

from benchmarks.task import Place


async def open(place: Place) -> Arrays | Objects | AioObjects:
    context: Any = zmq.asyncio.Context() if place.variant == "aio" else zmq.Context()
    sock, address = context.socket(zmq.PAIR), f"tcp://{place.host}:{place.port}"
    if place.is_server:
        sock.bind(address)
        place.ready()
    else:
        sock.connect(address)
    kind = AioObjects if place.variant == "aio" else Arrays if place.kind == "array" else Objects
    return kind(context, sock)


class Arrays:
    def __init__(self, context: Any, sock: Any) -> None:
        self._context = context
        self._sock = sock

    async def send(self, message: Any) -> None:
        self._sock.send(message, copy=False)

    async def receive(self, size: int) -> Any:
        return self._sock.recv(copy=False).buffer

    async def close(self) -> None:
        self._sock.close()
        self._context.term()  # waits until all messages have been sent


class Objects(Arrays):
    async def send(self, message: Any) -> None:
        self._sock.send_pyobj(message)

    async def receive(self, size: int) -> Any:
        return self._sock.recv_pyobj()


class AioObjects(Arrays):
    async def send(self, message: Any) -> None:
        await self._sock.send_pyobj(message)

    async def receive(self, size: int) -> Any:
        return await self._sock.recv_pyobj()
