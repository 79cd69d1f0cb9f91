"""Bare sockets: an upper bound. No framing and no serialisation: each side knows the sizes of its messages.

`sendall` of the caller's own buffer; large messages by `recv_into` a reused buffer, small ones out of one that is
filled as far as the kernel has something. https://docs.python.org/3/howto/sockets.html. The variant "sliced" does the
same in steps of SENT and READ bytes, for which the processor's caches are large enough, and without the pacing of BBR,
if that is the system's default: what a program gets that is tuned to one machine. The variant "unix" is a Unix socket
(SOCK_STREAM).
"""

from __future__ import annotations

import socket
from typing import Any, Protocol

from benchmarks.peers.tcp import tcp_socket
from benchmarks.task import Place

AHEAD = 256 * 1024  # bytes read at once; a larger message is read by itself
SENT, READ = 1024**2, 128 * 1024


async def open(place: Place) -> Wire:
    if place.variant == "unix":
        return Wire(unix_socket(place))
    sock = tcp_socket(place)
    if place.variant == "sliced":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        return Sliced(sock)
    return Wire(sock)


def unix_socket(place: Place) -> socket.socket:
    """Return a Unix socket between the two processes."""
    sock = socket.socket(socket.AF_UNIX)
    path = str(place.folder / f"unix-{place.port}")
    if not place.is_server:
        sock.connect(path)
        return sock
    with sock:
        sock.bind(path)
        sock.listen()
        place.ready()
        return sock.accept()[0]


class Stream(Protocol):
    """What a Wire needs of a socket: those of TLS, ring sockets and a pair of pipes have it, too."""

    def sendall(self, data: Any, /) -> object: ...
    def recv_into(self, buffer: memoryview, /) -> int: ...
    def close(self) -> None: ...


class Wire:
    def __init__(self, sock: Stream) -> None:
        self._sock = sock
        self._view = memoryview(bytearray(AHEAD))
        self._start = self._stop = 0  # the bytes that were read and not returned yet

    async def send(self, message: Any) -> None:
        self._sock.sendall(message)

    async def receive(self, size: int) -> memoryview:
        start = self._start
        if self._stop - start < size:
            start = self._fill(size)
        self._start = start + size
        return self._view[start : start + size]

    async def close(self) -> None:
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
    async def send(self, message: Any) -> None:
        view = memoryview(message)
        for start in range(0, len(view), SENT):
            self._sock.sendall(view[start : start + SENT])

    def _free_space(self) -> memoryview:
        return self._view[self._stop : self._stop + READ]
