"""netq itself: `put`, and `get`, over the transport that the variant names.

"into" is TCP with `get(into=…)`: each message is received into one array of this side.
"tls" is TCP under the TLS of pyOpenSSL, "tls-of-python" under that of the standard library, "sealed" is TCP with seals.

README.md: the data is not copied, and the future is done when the peer holds the message. `put` never waits, so this
module bounds the messages in flight by waiting for futures: IN_FLIGHT messages or BYTES. An exchange has no bound,
because each side puts all its messages before it gets any.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import netq
from benchmarks.task import Place
from netq.options import PostQuantum

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
    is_tls, is_sealed = place.variant.startswith("tls"), place.variant == "sealed"
    options = netq.CommunicatorOptions(
        netloc=netq.NetworkLocation(place.host, place.port),
        connection=netq.ConnectionOptions(queue_bytes=1 << 40),  # this module bounds them
        security=_security(place, purpose) if is_tls else None,
        seal=_seal(place, purpose) if is_sealed else None,
    )
    is_tcp = is_tls or is_sealed or place.variant == "into"
    return netq.new(netq.Protocol("tcp" if is_tcp else place.variant), purpose, options)


def _security(place: Place, purpose: netq.Purpose) -> netq.SecurityOptions:
    post_quantum: PostQuantum = "off" if place.variant == "tls-of-python" else "prefer"
    if purpose is netq.Purpose.CLIENT:
        return netq.SecurityOptions(certificate=place.folder / "authority.pem", post_quantum=post_quantum)
    key, certificate = place.folder / "server-key.pem", place.folder / "server.pem"
    return netq.SecurityOptions(key, certificate, post_quantum=post_quantum)


def _seal(place: Place, purpose: netq.Purpose) -> netq.SealOptions:
    name = "server" if purpose is netq.Purpose.SERVER else "client"
    names = f"{name}-key.pem", f"{name}.pem", "authority.pem"
    return netq.SealOptions(*[place.folder / file for file in names])


class Wire:
    def __init__(self, queue: netq.Communicator, place: Place, *peers: Any) -> None:
        self._queue = queue
        self._peers = peers
        self._is_bounded = place.work != "exchange"
        self._left: float = 0 if self._is_bounded else math.inf  # messages before the next wait
        self._last: netq.Delivery | None = None  # of the batch before
        self._size = place.size  # of the messages that are no ACK
        self._into = np.empty(place.size, np.uint8) if (place.variant, place.kind) == ("into", "array") else None

    def send(self, message: Any) -> None:
        delivery = self._queue.put(message, *self._peers)
        self._left -= 1
        if self._left <= 0:
            self._left = max(1, min(IN_FLIGHT, BYTES // len(message)) // 2)
            if self._last is not None:
                self._last.result()
            self._last = delivery

    def receive(self, size: int) -> Any:
        return self._queue.get(into=self._into if size == self._size else None).data

    def close(self) -> None:
        self._queue.close()
