"""net-queue, as published: `put`, and `get`. It needs Python 3.13, so its processes run in that: see __init__.py.

https://pypi.org/project/net-queue/: default options; a future is done when the peer has received the message.
Messages in flight are bounded as in netq_.py. An exchange, which is this package's own benchmark, has no bound.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

from benchmarks.task import Place

IN_FLIGHT = 1000
BYTES = 64 * 1024**2
nq: Any = importlib.import_module("net_queue")  # untyped, and not installed where types are checked


def listen(place: Place, ready: Callable[[], None]) -> Wire:
    queue = _new(place, nq.Purpose.SERVER)
    ready()
    return Wire(queue, place, queue.get().peer)


def connect(place: Place) -> Wire:
    queue = _new(place, nq.Purpose.CLIENT)
    queue.put("here")
    return Wire(queue, place)


def _new(place: Place, purpose: Any) -> Any:
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(place.host, place.port))
    return nq.new(nq.Protocol[place.variant.upper()], purpose, options)


class Wire:
    def __init__(self, queue: Any, place: Place, *peers: Any) -> None:
        self._queue = queue
        self._peers = peers
        self._batch = math.inf if place.work == "exchange" else max(1, min(IN_FLIGHT, BYTES // place.size) // 2)
        self._count = 0
        self._last: Any = None  # of the batch before

    def send(self, message: Any) -> None:
        future = self._queue.put(message, *self._peers)
        self._count += 1
        if self._count >= self._batch:
            self._count = 0
            if self._last is not None:
                self._last.result()
            self._last = future

    def receive(self, size: int) -> Any:
        return self._queue.get().data

    def close(self) -> None:
        self._queue.close()
