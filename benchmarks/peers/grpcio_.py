"""gRPC by grpcio: one bidirectional stream of bytes, the synchronous API. No protobuf: messages are `bytes` already.

https://grpc.io/docs/guides/performance/#python: one long-lived stream instead of calls. The page
also warns that synchronous streaming in Python needs one more thread, and recommends the asyncio API: grpcio_aio.py.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from benchmarks.task import Place

METHOD = "/benchmarks.Peer/stream"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def handlers(handler: Callable[..., Any]) -> Any:
    """Return the generic handler by which a server passes METHOD to `handler`."""
    _, service, method = METHOD.split("/")
    return grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(handler)})


async def open(place: Place) -> Wire:
    address = f"{place.host}:{place.port}"
    if not place.is_server:
        channel = grpc.insecure_channel(address, options=OPTIONS)
        wire = Wire(iter(()), channel.close)
        wire.incoming = channel.stream_stream(METHOD)(wire.outgoing())
        return wire
    calls: queue.SimpleQueue[Wire] = queue.SimpleQueue()

    def handler(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        wire = Wire(requests, lambda: server.stop(10).wait())
        calls.put(wire)
        return wire.outgoing()

    server = grpc.server(ThreadPoolExecutor(1), options=OPTIONS)
    server.add_generic_rpc_handlers((handlers(handler),))
    server.add_insecure_port(address)
    server.start()
    place.ready()
    return calls.get()


class Wire:
    def __init__(self, incoming: Iterator[bytes], end: Callable[[], Any]) -> None:
        self.incoming = incoming
        self._end = end
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def outgoing(self) -> Iterator[bytes]:
        return iter(self._out.get, None)

    async def send(self, message: bytes) -> None:
        self._out.put(message)

    async def receive(self, size: int) -> bytes:
        return next(self.incoming)

    async def close(self) -> None:
        self._out.put(None)
        for _ in self.incoming:  # until the other side has ended its half too
            raise RuntimeError("more came than was sent")
        self._end()
