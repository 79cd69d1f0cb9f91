"""gRPC by grpcio: one bidirectional stream of bytes, the asyncio API. See grpcio_.py.

https://grpc.github.io/grpc/python/grpc_asyncio.html: `read` and `write` of the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from benchmarks.peers.grpcio_ import METHOD, OPTIONS, handlers
from benchmarks.task import Place


async def open(place: Place) -> Wire:
    address = f"{place.host}:{place.port}"
    if not place.is_server:
        channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        call = channel.stream_stream(METHOD)()
        return Wire(call, channel.close, call.done_writing)
    accepted: asyncio.Future[Wire] = asyncio.get_running_loop().create_future()

    async def handler(requests: Any, context: Any) -> None:
        wire = Wire(context, lambda: server.stop(10))
        accepted.set_result(wire)
        await wire.ended.wait()

    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((handlers(handler),))
    server.add_insecure_port(address)
    await server.start()
    place.ready()
    return await accepted


class Wire:
    def __init__(self, call: Any, end: Callable[[], Any], half: Callable[[], Any] | None = None) -> None:
        self._call = call
        self._end = end
        self._half = half
        self.ended = asyncio.Event()

    async def send(self, message: bytes) -> None:
        await self._call.write(message)

    async def receive(self, size: int) -> bytes:
        return await self._call.read()  # type: ignore[no-any-return]

    async def close(self) -> None:
        if self._half is not None:
            await self._half()
        else:
            await self._call.read()  # the client's end
        self.ended.set()
        if self._half is not None:
            await self._call.read()  # the server's end
        await self._end()
