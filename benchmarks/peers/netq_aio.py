"""netq.aio, over TCP: `put`, and `await get`. netq_.py describes how the messages in flight are bounded.

docs/reference/api.md, "asyncio": awaiting the result of `put` is optional. "into" is with `get(into=…)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

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
        self._batch = max(1, min(IN_FLIGHT, BYTES // place.size) // 2)
        self._count = 0
        self._last: netq.aio.Delivery | None = None  # of the batch before
        self._size = place.size  # of the messages that are no ACK
        self._into = np.empty(place.size, np.uint8) if (place.variant, place.kind) == ("into", "array") else None

    async def send(self, message: Any) -> None:
        delivery = self._queue.put(message, *self._peers)
        self._count += 1
        if self._count >= self._batch:
            self._count = 0
            if self._last is not None:
                await self._last
            self._last = delivery

    async def receive(self, size: int) -> Any:
        return (await self._queue.get(into=self._into if size == self._size else None)).data

    async def close(self) -> None:
        await self._queue.close()
