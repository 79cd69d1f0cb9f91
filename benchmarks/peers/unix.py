"""Bare Unix sockets (SOCK_STREAM), used as the TCP sockets of raw.py. https://docs.python.org/3/library/socket.html"""

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
    return str(place.folder / f"unix-{place.port}")
