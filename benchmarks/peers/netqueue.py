"""net-queue, as published: `put`, and `get`. It needs Python 3.13, so its processes run in that: see __init__.py.

https://pypi.org/project/net-queue/: default options; a future is done when the peer has received the message.
Messages in flight are bounded as in netq_.py. An exchange, which is this package's own benchmark, has no bound.
"""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.peers.netq_ import Wire
from benchmarks.task import Place

nq: Any = importlib.import_module("net_queue")  # untyped, and not installed where types are checked


async def open(place: Place) -> Wire:
    options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(place.host, place.port))
    purpose = nq.Purpose.SERVER if place.is_server else nq.Purpose.CLIENT
    queue = nq.new(nq.Protocol[place.variant.upper()], purpose, options)
    if not place.is_server:
        queue.put("here")
        return Wire(queue, place)
    place.ready()
    return Wire(queue, place, queue.get().peer)
