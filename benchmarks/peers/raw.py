"""Bare TCP sockets: an upper bound. No framing and no serialisation: each side knows the sizes of its messages.

`sendall` of the caller's own buffer; large messages by `recv_into` a reused buffer, small ones out of one
that is filled as far as the kernel has something. https://docs.python.org/3/howto/sockets.html. The variant "sliced"
does the same in steps of SENT and READ bytes, for which the processor's caches are large enough, and without the pacing
of BBR, if that is the system's default: what a program gets that is tuned to one machine.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Protocol

from benchmarks.task import Place

AHEAD = 256 * 1024  # bytes read at once; a larger message is read by itself
SENT, READ = 1024**2, 128 * 1024


def listen(place: Place, ready: Callable[[], None]) -> Wire:
    with socket.create_server((place.host, place.port)) as listener:
        ready()
        return _wire(place, listener.accept()[0])


def connect(place: Place) -> Wire:
    return _wire(place, socket.create_connection((place.host, place.port)))


def _wire(place: Place, sock: socket.socket) -> Wire:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if place.variant == "sliced":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        return Sliced(sock)
    return Wire(sock)


class Stream(Protocol):
    """What a Wire needs of a socket: those of Unix, ring sockets and a pair of pipes have it, too."""

    def sendall(self, data: Any, /) -> object: ...
    def recv_into(self, buffer: memoryview, /) -> int: ...
    def close(self) -> None: ...


class Wire:
    def __init__(self, sock: Stream) -> None:
        self._sock = sock
        self._view = memoryview(bytearray(AHEAD))
        self._start = self._stop = 0  # the bytes that were read and not returned yet

    def send(self, message: Any) -> None:
        self._sock.sendall(message)

    def receive(self, size: int) -> memoryview:
        start = self._start
        if self._stop - start < size:
            start = self._fill(size)
        self._start = start + size
        return self._view[start : start + size]

    def close(self) -> None:
        self._sock.close()

    def _fill(self, size: int) -> int:
        """Read until a message is complete; return its position."""
        left, old = self._stop - self._start, self._view
        if len(old) < size:
            self._view = memoryview(bytearray(size))
        self._view[:left] = old[self._start : self._stop]
        self._start, self._stop = 0, left
        while self._stop < size:
            n = self._sock.recv_into(self._free_space())
            if not n:
                raise EOFError("the other side has closed")
            self._stop += n
        return 0

    def _free_space(self) -> memoryview:
        return self._view[self._stop :]


class Sliced(Wire):
    def send(self, message: Any) -> None:
        view = memoryview(message)
        for start in range(0, len(view), SENT):
            self._sock.sendall(view[start : start + SENT])

    def _free_space(self) -> memoryview:
        return self._view[self._stop : self._stop + READ]
