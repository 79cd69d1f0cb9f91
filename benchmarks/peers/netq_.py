"""netq itself: `put`, and `get`, over the transport that the variant names.

"into" is TCP with `get(into=…)`: each message is received into one array of this side. "aio" is netq.aio over TCP,
"aio-into" both. "tls" is TCP under the TLS of pyOpenSSL, "tls-of-python" under that of the standard library, "sealed"
is TCP with seals.

README.md: the data is not copied, and the future is done when the peer holds the message; awaiting the result of `put`
is optional. `put` never waits, so this module bounds the messages in flight by waiting for futures: IN_FLIGHT messages
or BYTES. An exchange has no bound, because each side puts all its messages before it gets any.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import netq
import netq.aio
from benchmarks.task import Place
from netq.options import PostQuantum

IN_FLIGHT = 1000
BYTES = 64 * 1024**2
TRANSPORTS = ("mqtt", "grpc", "shm")


async def open(place: Place) -> Wire | AioWire:
    is_aio = place.variant.startswith("aio")
    protocol = netq.Protocol(place.variant if place.variant in TRANSPORTS else "tcp")
    purpose = netq.Purpose.SERVER if place.is_server else netq.Purpose.CLIENT
    options = netq.CommunicatorOptions(
        netloc=netq.NetworkLocation(place.host, place.port),
        connection=netq.ConnectionOptions(queue_bytes=1 << 40),  # this module bounds them
        security=_security(place) if place.variant.startswith("tls") else None,
        seal=_seal(place) if place.variant == "sealed" else None,
    )
    queue: Any = (netq.aio if is_aio else netq).new(protocol, purpose, options)
    if not place.is_server:
        queue.put("here")
        return (AioWire if is_aio else Wire)(queue, place)
    place.ready()
    first = queue.get(timeout=30)
    return AioWire(queue, place, (await first).peer) if is_aio else Wire(queue, place, first.peer)


def _security(place: Place) -> netq.SecurityOptions:
    post_quantum: PostQuantum = "off" if place.variant == "tls-of-python" else "prefer"
    if not place.is_server:
        return netq.SecurityOptions(certificate=place.folder / "authority.pem", post_quantum=post_quantum)
    key, certificate = place.folder / "server-key.pem", place.folder / "server.pem"
    return netq.SecurityOptions(key, certificate, post_quantum=post_quantum)


def _seal(place: Place) -> netq.SealOptions:
    name = "server" if place.is_server else "client"
    names = f"{name}-key.pem", f"{name}.pem", "authority.pem"
    return netq.SealOptions(*[place.folder / file for file in names])


class Wire:
    """Also that of net-queue, which has the same calls."""

    def __init__(self, queue: Any, place: Place, *peers: Any) -> None:
        self._queue = queue
        self._peers = peers
        self._left: float = 0 if place.is_bounded else math.inf  # messages before the next wait
        self._last: Any = None  # the future of the last message of the batch before
        self._size = place.size  # of the messages that are no ACK
        self._into = np.empty(place.size, np.uint8) if "into" in place.variant and place.kind == "array" else None

    async def send(self, message: Any) -> None:
        delivery = self._queue.put(message, *self._peers)
        self._left -= 1
        if self._left <= 0:
            self._left = max(1, min(IN_FLIGHT, BYTES // len(message)) // 2)
            if self._last is not None:
                self._last.result()
            self._last = delivery

    async def receive(self, size: int) -> Any:
        if self._into is not None and size == self._size:
            return self._queue.get(into=self._into).data
        return self._queue.get().data

    async def close(self) -> None:
        self._queue.close()


class AioWire(Wire):
    async def send(self, message: Any) -> None:
        delivery = self._queue.put(message, *self._peers)
        self._left -= 1
        if self._left <= 0:
            self._left = max(1, min(IN_FLIGHT, BYTES // len(message)) // 2)
            if self._last is not None:
                await self._last
            self._last = delivery

    async def receive(self, size: int) -> Any:
        return (await self._queue.get(into=self._into if size == self._size else None)).data

    async def close(self) -> None:
        await self._queue.close()
