"""A stream socket of the Unix domain, as socket.socketpair makes it too: bytes, no framing and no serialisation.

https://docs.python.org/3/library/socket.html#socket.socketpair. The two processes find each other by a path, because
neither has started the other. The buffers have the system's default size.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from benchmarks.peers.raw import Wire
from benchmarks.task import Place


def listen(place: Place, ready: Callable[[], None]) -> Wire:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(_path(place))
        listener.listen()
        ready()
        return Wire(listener.accept()[0])


def connect(place: Place) -> Wire:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(_path(place))
    return Wire(sock)


def _path(place: Place) -> str:
    return str(place.folder / f"socket-{place.port}")
