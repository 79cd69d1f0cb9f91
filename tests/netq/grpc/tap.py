"""A TCP proxy for one connection that records the HTTP/2 frames that pass (RFC 9113, 4.1)."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from netq import NetworkLocation

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, PING, GOAWAY = 0, 6, 7


class Tap:
    """Clients connect to `netloc`; `frames` returns the kinds of the frames that have passed."""

    def __init__(self, upstream: NetworkLocation) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.netloc = NetworkLocation(*self._listener.getsockname())
        self._upstream = upstream
        self._ends: list[socket.socket] = []
        self._passed = (bytearray(), bytearray())
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def frames(self, direction: int) -> list[int]:
        """The kinds, from the client (0) or from the server (1)."""
        data = bytes(self._passed[direction]).removeprefix(PREFACE)
        kinds = []
        while len(data) >= 9:
            kinds.append(data[3])
            data = data[9 + int.from_bytes(data[:3], "big") :]
        return kinds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for sock in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for sock in (self._listener, *self._ends):
            sock.close()

    def _carry(self) -> None:
        with contextlib.suppress(OSError):  # closed before a client connected
            near = self._listener.accept()[0]
            far = socket.create_connection(self._upstream)
            self._ends = [near, far]
            back = threading.Thread(target=self._pass, args=(far, near, 1))
            back.start()
            self._pass(near, far, 0)
            back.join()

    def _pass(self, source: socket.socket, target: socket.socket, direction: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._passed[direction].extend(data)
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
