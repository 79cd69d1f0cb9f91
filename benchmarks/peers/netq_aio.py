"""netq.aio, over TCP: `put`, and `await get`. What is on its way is bounded as in netq_.py, whose docstring says how.

docs/reference/api.md, "asyncio": what `put` returns may be awaited or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import netq
import netq.aio
from benchmarks.peers.netq_ import BYTES, IN_FLIGHT
from benchmarks.task import Place

run = asyncio.run


async def listen(place: Place, ready: Callable[[], None]) -> Wire:
    queue = _new(place, netq.Purpose.SERVER)
    ready()
    return Wire(queue, place, (await queue.get(timeout=30)).peer)


async def connect(place: Place) -> Wire:
    queue = _new(place, netq.Purpose.CLIENT)
    queue.put("here")
    return Wire(queue, place)


def _new(place: Place, purpose: netq.Purpose) -> netq.aio.Communicator:
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation(place.host, place.port))
    return netq.aio.new(netq.Protocol.TCP, purpose, options)


class Wire:
    def __init__(self, queue: netq.aio.Communicator, place: Place, *peers: Any) -> None:
        self._queue = queue
        self._peers = peers
        self._turn = max(1, min(IN_FLIGHT, BYTES // place.size) // 2)
        self._put = 0
        self._last: netq.aio.Delivery | None = None  # of the turn before

    async def send(self, message: Any) -> None:
        delivery = self._queue.put(message, *self._peers)
        self._put += 1
        if self._put >= self._turn:
            self._put = 0
            if self._last is not None:
                await self._last
            self._last = delivery

    async def receive(self, size: int) -> Any:
        return (await self._queue.get()).data

    async def close(self) -> None:
        await self._queue.close()
