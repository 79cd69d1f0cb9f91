"""A stream that breaks gives what has come of it, and lets go of grpc; so does the engine at its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from netq.grpc._grpc import grpc
from netq.grpc.channel_options import CONNECT, METHOD, SERVICE
from netq.grpc.client import ends_of
from netq.grpc.event_loop import EventLoop, acquire, release
from netq.grpc.stream import END, Ends, Stream
from netq.testing.fixtures import LIMIT

SIZE = 512 * 1024  # bytes: three of them are more than a stream reads ahead
PACKETS = [bytes([number]) * SIZE for number in range(6)]


@pytest.fixture
def engine() -> Iterator[EventLoop]:
    engine = acquire()
    yield engine
    release(engine)
    engine._thread.join(LIMIT)
    assert not [thread for thread in threading.enumerate() if "_poll_wrapper" in thread.name]


class Broken:
    """A stream of which the server has sent all, and to which the client cannot write any more."""

    def __init__(self, engine: EventLoop) -> None:
        self.failed = threading.Event()  # a write has
        self.something = threading.Event()  # has come
        self.stream = Stream(engine, self.something.set, "the peer")

    async def carry(self) -> None:
        """Serve one stream in this process, and carry the client's half of it."""
        server = grpc.aio.server()
        methods = {CONNECT: grpc.stream_stream_rpc_method_handler(_all)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ends = ends_of(channel.stream_stream(METHOD)())
            await self.stream.carry(Ends(ends.read, lambda packet: self._write(ends, packet), ends.finish))
        await server.stop(None)

    async def _write(self, ends: Ends, packet: bytes) -> None:
        try:
            await ends.write(packet)
        except Exception:
            self.failed.set()
            raise

    def taken(self) -> list[bytes]:
        """Take all that comes, to the end."""
        packets: list[bytes] = []
        while not packets or packets[-1] != END:
            self.something.clear()
            if (packet := self.stream.up.take()) is None:
                assert self.something.wait(LIMIT)
            else:
                packets.append(packet)
                self.stream.up.taken(len(packet))
        return packets[:-1]


async def _all(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
    for packet in PACKETS:
        await context.write(packet)


def test_all_that_has_come_is_read_after_a_write_has_failed(engine: EventLoop) -> None:
    broken = Broken(engine)
    carried = asyncio.run_coroutine_threadsafe(broken.carry(), engine.loop)
    for _ in range(10_000):
        broken.stream.down.give(b"to one who has said all")
        if broken.failed.wait(0.01):
            break
    assert broken.failed.is_set()
    assert broken.taken() == PACKETS
    carried.result(LIMIT)


def test_the_last_one_to_release_the_engine_ends_the_tasks_that_do_not_end() -> None:
    engine = acquire()
    task = asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), engine.loop)
    release(engine)
    assert not engine._thread.is_alive()
    assert task.cancelled()
