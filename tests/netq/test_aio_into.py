"""`get(into=…)` of the asyncio front: the same as of the core, and no message is lost by a cancellation."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import netq.aio
from netq import BufferMismatch, CommunicatorOptions, NetworkLocation, Purpose
from netq.testing.fixtures import LIMIT


def options(server: netq.aio.Communicator | None = None) -> CommunicatorOptions:
    return CommunicatorOptions(netloc=server.netloc if server else NetworkLocation("127.0.0.1", 0))


async def check_into() -> None:
    async with (
        netq.aio.new(purpose=Purpose.SERVER, options=options()) as server,
        netq.aio.new(options=options(server)) as client,
    ):
        into = np.zeros(100_000)
        sent = np.arange(100_000.0)
        getting = asyncio.create_task(server.get(into=into))
        await asyncio.sleep(0)
        client.put(sent)
        data = (await asyncio.wait_for(getting, LIMIT)).data
        assert np.array_equal(into, sent)
        assert np.shares_memory(data, into)
        client.put(sent[1:])
        with pytest.raises(BufferMismatch, match=r"has 800000 bytes, .* has 799992") as raised:
            await server.get(timeout=LIMIT, into=into)
        assert np.array_equal(raised.value.message.data, sent[1:])
        with pytest.raises(ValueError, match="read-only"):
            await server.get(timeout=LIMIT, into=b"x")


async def check_cancelled() -> None:
    async with (
        netq.aio.new(purpose=Purpose.SERVER, options=options()) as server,
        netq.aio.new(options=options(server)) as client,
    ):
        into = np.zeros(10)
        getting = asyncio.create_task(server.get(into=into))
        await asyncio.sleep(0)
        client.put(np.ones(10)).delivery.result(LIMIT)  # blocks the event loop: the message is given to the waiter
        assert not getting.done()
        getting.cancel()
        await asyncio.wait([getting])
        assert getting.cancelled()
        assert not into.any(), "a cancelled get has filled the buffer"
        assert (await server.get(timeout=LIMIT, into=into)).data.sum() == into.sum() == 10


@pytest.mark.parametrize("check", [check_into, check_cancelled])
def test_get_into_in_event_loop(check: object) -> None:
    asyncio.run(asyncio.wait_for(check(), LIMIT))  # type: ignore[operator]
