"""ØMQ by pyzmq. Large messages with copy=False, objects with send_pyobj and recv_pyobj.

https://pyzmq.readthedocs.io/en/latest/howto/serialization.html: `send(array, copy=False)` and
`recv(copy=False)` for arrays, without the header with dtype and shape of that page. The limit of waiting messages
(1,000 on each side) is the default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq

from benchmarks.task import Place


def listen(place: Place, ready: Callable[[], None]) -> Arrays | Objects:
    context = zmq.Context()
    sock = context.socket(zmq.PAIR)
    sock.bind(f"tcp://{place.host}:{place.port}")
    ready()
    return _wire(place, context, sock)


def connect(place: Place) -> Arrays | Objects:
    context = zmq.Context()
    sock = context.socket(zmq.PAIR)
    sock.connect(f"tcp://{place.host}:{place.port}")
    return _wire(place, context, sock)


def _wire(place: Place, context: zmq.Context[Any], sock: zmq.Socket[Any]) -> Arrays | Objects:
    return Arrays(context, sock) if place.kind == "array" else Objects(context, sock)


class Arrays:
    def __init__(self, context: zmq.Context[Any], sock: zmq.Socket[Any]) -> None:
        self._context = context
        self._sock = sock

    def send(self, message: Any) -> None:
        self._sock.send(message, copy=False)

    def receive(self, size: int) -> Any:
        return self._sock.recv(copy=False).buffer

    def close(self) -> None:
        self._sock.close()
        self._context.term()  # waits until all messages have been sent


class Objects(Arrays):
    def __init__(self, context: zmq.Context[Any], sock: zmq.Socket[Any]) -> None:
        super().__init__(context, sock)
        self.send = sock.send_pyobj  # type: ignore[assignment,method-assign,unused-ignore]  # no call in between
        self._receive = sock.recv_pyobj

    def receive(self, size: int) -> Any:
        return self._receive()
