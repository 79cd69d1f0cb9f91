"""A broken stream delivers the packets that arrived, and releases grpc; so does the event loop at its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from netq.grpc._grpc import grpc
from netq.grpc.channel_options import CONNECT, METHOD, SERVICE
from netq.grpc.client import functions_of
from netq.grpc.event_loop import EventLoop, acquire, release
from netq.grpc.stream import END, Stream, StreamFunctions
from netq.testing.fixtures import LIMIT

SIZE = 512 * 1024  # bytes: three of them are more than a stream reads ahead
PACKETS = [bytes([number]) * SIZE for number in range(6)]


@pytest.fixture
def event_loop() -> Iterator[EventLoop]:
    event_loop = acquire()
    yield event_loop
    release(event_loop)
    event_loop._thread.join(LIMIT)
    assert not [thread for thread in threading.enumerate() if "_poll_wrapper" in thread.name]


class Broken:
    """A stream whose server has sent all packets, and to which the client can no longer write."""

    def __init__(self, event_loop: EventLoop) -> None:
        self.failed = threading.Event()  # a write has failed
        self.arrived = threading.Event()
        self.stream = Stream(event_loop, self.arrived.set, "the peer")

    async def carry(self) -> None:
        """Serve one stream in this process, and carry the client's side of it."""
        server = grpc.aio.server()
        methods = {CONNECT: grpc.stream_stream_rpc_method_handler(_all)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            functions = functions_of(channel.stream_stream(METHOD)())
            await self.stream.carry(
                StreamFunctions(functions.read, lambda packet: self._write(functions, packet), functions.finish)
            )
        await server.stop(None)

    async def _write(self, functions: StreamFunctions, packet: bytes) -> None:
        try:
            await functions.write(packet)
        except Exception:
            self.failed.set()
            raise

    def packets(self) -> list[bytes]:
        """Take all packets until END."""
        packets: list[bytes] = []
        while not packets or packets[-1] != END:
            self.arrived.clear()
            if (packet := self.stream.incoming.take()) is None:
                assert self.arrived.wait(LIMIT)
            else:
                packets.append(packet)
                self.stream.incoming.processed(len(packet))
        return packets[:-1]


async def _all(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
    for packet in PACKETS:
        await context.write(packet)


def test_arrived_packets_are_read_after_a_failed_write(event_loop: EventLoop) -> None:
    broken = Broken(event_loop)
    carried = asyncio.run_coroutine_threadsafe(broken.carry(), event_loop.loop)
    for _ in range(10_000):
        broken.stream.outgoing.put(b"to a server that has finished")
        if broken.failed.wait(0.01):
            break
    assert broken.failed.is_set()
    assert broken.packets() == PACKETS
    carried.result(LIMIT)


@pytest.mark.slow
def test_last_release_cancels_remaining_tasks() -> None:
    event_loop = acquire()
    task = asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), event_loop.loop)
    release(event_loop)
    assert not event_loop._thread.is_alive()
    assert task.cancelled()
