"""netq itself: `put`, and `get`, over the transport that the variant names ("tls" is TCP under TLS).

README.md: what is put is not copied, and its future is done when the peer holds it. `put` never waits, so what is on
its way is bounded here, by the futures: IN_FLIGHT messages or BYTES. Not in an exchange, where each side puts all that
it has before it takes anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import netq
from benchmarks.task import Place

IN_FLIGHT = 1000
BYTES = 64 * 1024**2


def listen(place: Place, ready: Callable[[], None]) -> Wire:
    queue = _new(place, netq.Purpose.SERVER)
    ready()
    return Wire(queue, place, queue.get(timeout=30).peer)


def connect(place: Place) -> Wire:
    queue = _new(place, netq.Purpose.CLIENT)
    queue.put("here")
    return Wire(queue, place)


def _new(place: Place, purpose: netq.Purpose) -> netq.Communicator:
    options = netq.CommunicatorOptions(
        netloc=netq.NetworkLocation(place.host, place.port),
        security=_security(place, purpose) if place.variant == "tls" else None,
    )
    return netq.new(netq.Protocol("tcp" if place.variant == "tls" else place.variant), purpose, options)


def _security(place: Place, purpose: netq.Purpose) -> netq.SecurityOptions:
    if purpose is netq.Purpose.CLIENT:
        return netq.SecurityOptions(certificate=place.folder / "authority.pem")
    return netq.SecurityOptions(place.folder / "server-key.pem", place.folder / "server.pem")


class Wire:
    def __init__(self, queue: netq.Communicator, place: Place, *peers: Any) -> None:
        self._queue = queue
        self._peers = peers
        self._turn = math.inf if place.work == "exchange" else max(1, min(IN_FLIGHT, BYTES // place.size) // 2)
        self._put = 0
        self._last: netq.Delivery | None = None  # of the turn before

    def send(self, message: Any) -> None:
        delivery = self._queue.put(message, *self._peers)
        self._put += 1
        if self._put >= self._turn:
            self._put = 0
            if self._last is not None:
                self._last.result()
            self._last = delivery

    def receive(self, size: int) -> Any:
        return self._queue.get().data

    def close(self) -> None:
        self._queue.close()
