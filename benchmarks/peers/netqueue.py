"""net-queue, as published: `put`, and `get`. It needs Python 3.13, and so a process of that one: see find.py.

https://pypi.org/project/net-queue/: defaults; a future is done when the peer has received. What is on its way is
bounded as for netq, and is not in an exchange, which is this package's own benchmark.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

from benchmarks.task import Place

IN_FLIGHT = 1000
BYTES = 64 * 1024**2
nq: Any = importlib.import_module("net_queue")  # has no types, and is not where these are checked


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
        self._turn = math.inf if place.work == "exchange" else max(1, min(IN_FLIGHT, BYTES // place.size) // 2)
        self._put = 0
        self._last: Any = None  # of the turn before

    def send(self, message: Any) -> None:
        future = self._queue.put(message, *self._peers)
        self._put += 1
        if self._put >= self._turn:
            self._put = 0
            if self._last is not None:
                self._last.result()
            self._last = future

    def receive(self, size: int) -> Any:
        return self._queue.get().data

    def close(self) -> None:
        self._queue.close()
