"""What both fronts have of netq/fronts.py, under asyncio and under trio."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import netq.aio
from netq import (
    Closed,
    CommunicatorOptions,
    ConnectionOptions,
    EventOptions,
    NetworkLocation,
    Purpose,
    SerializationOptions,
)
from netq.testing.fixtures import LIMIT
from netq.utils.stream import Stream

trio = pytest.importorskip("trio")
netq_trio = pytest.importorskip("netq.trio")
HERE = NetworkLocation("127.0.0.1", 0)
NO_ONE = uuid.UUID(int=1)
Main = Callable[[Any], Awaitable[None]]


def in_asyncio(main: Main) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT):
            await main(netq.aio)

    asyncio.run(limited())


def in_trio(main: Main) -> None:
    async def limited() -> None:
        with trio.fail_after(LIMIT):
            await main(netq_trio)

    trio.run(limited)


runs = pytest.mark.parametrize("run", [in_asyncio, in_trio])


def server_of(front: Any, netloc: NetworkLocation = HERE, **options: Any) -> Any:
    return front.new(purpose=Purpose.SERVER, options=CommunicatorOptions(netloc=netloc, **options))


def client_of(front: Any, server: Any, **options: Any) -> Any:
    return front.new(options=CommunicatorOptions(netloc=server.netloc, **options))


@runs
def test_multicast_tells_of_failures_in_the_event_loop(run: Callable[[Main], None]) -> None:
    async def main(front: Any) -> None:
        told: list[tuple[uuid.UUID, type[Exception], bool]] = []
        here = threading.get_ident()

        def note(peer: uuid.UUID, error: Exception) -> None:
            told.append((peer, type(error), threading.get_ident() == here))

        async with server_of(front) as server, client_of(front, server) as client:
            await client.put("hello")
            await server.get()
            server.multicast("data", [NO_ONE, client.id], failed=note)
            assert (await client.get()).data == "data"
            await client.put("again")
            await server.get()
            assert told == [(NO_ONE, Closed, True)]
            assert (server.connected, server.memory_is_full) == (True, False)

    run(main)


@runs
def test_unbounded_message_passes_a_full_queue(run: Callable[[Main], None]) -> None:
    async def main(front: Any) -> None:
        full = ConnectionOptions(window=1, queue_size=1)
        async with server_of(front, connection=full) as server, client_of(front, server, connection=full) as client:
            await client.put("hello")
            sent = [client.put(number, bounded=number == 1) for number in range(4)]
            assert [(await server.get()).data for _ in range(4)] == ["hello", 0, 2, 3]
            with pytest.raises(netq.QueueFull):
                await sent[1]

    run(main)


@runs
def test_end_of_a_session_comes_in_the_order_of_its_messages(run: Callable[[Main], None]) -> None:
    async def main(front: Any) -> None:
        text = SerializationOptions(lambda stream: bytes(stream).decode(), str.encode)
        events = EventOptions(end=Stream([b"end"]))
        async with server_of(front, events=events, serialization=text) as server:
            async with client_of(front, server, serialization=text) as client:
                await client.put("last")
            assert [(await server.get()).data for _ in range(2)] == ["last", "end"]

    run(main)


@runs
def test_client_is_paused_and_expelled(run: Callable[[Main], None]) -> None:
    async def main(front: Any) -> None:
        begun: list[uuid.UUID] = []
        ended: list[uuid.UUID] = []
        async with (
            server_of(front, events=EventOptions(begun.append, ended.append)) as server,
            client_of(front, server, connection=ConnectionOptions(retry_min=0.01)) as client,
        ):
            await client.put("hello")
            await server.get()
            server.pause(client.id, "others go first")
            server.resume(client.id)
            await client.put("goes on")
            assert (await server.get()).data == "goes on"
            assert ended == []
            server.expel(client.id, "it is loud")
            while len(begun) < 2:  # a message that is put before belongs to the session that has ended
                await server.statistics()
            assert ended == [client.id]
            await client.put("back")
            assert (await server.get()).data == "back"

    run(main)


@runs
@pytest.mark.parametrize(
    "call",
    [
        lambda server: server.multicast("data", [NO_ONE]),
        lambda server: server.expel(NO_ONE, "why"),
        lambda server: server.pause(NO_ONE, "why"),
        lambda server: server.resume(NO_ONE),
    ],
    ids=["multicast", "expel", "pause", "resume"],
)
def test_call_outside_of_the_event_loop_is_refused(run: Callable[[Main], None], call: Callable[[Any], object]) -> None:
    async def main(front: Any) -> None:
        errors: list[Exception] = []

        def elsewhere() -> None:
            try:
                call(server)
            except RuntimeError as error:
                errors.append(error)

        async with server_of(front) as server:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            assert len(errors) == 1

    run(main)
