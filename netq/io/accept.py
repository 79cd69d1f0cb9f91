"""Accepts connections at a listening socket. Pauses while there is no room for more, or no descriptor left.

Owned by a server's transport; runs in the thread of its loop and never waits.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from netq.io.loop import Loop
from netq.io.selector import READ
from netq.log import log

# Connections accepted in one turn. Few: the handshakes that have begun go on before others begin.
_ACCEPTS = 8
_NO_ROOM_PAUSE = 0.02  # seconds without accepting when there is no room; clients wait in the listen queue
_PAUSE = 1.0  # seconds without accepting when the system has no descriptors; clients wait in the listen queue


class Acceptor:
    """Calls `accepted(sock, address)` for each connection, until `close`, while `has_room()`.

    It does not own the listening socket.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        where: str,
        has_room: Callable[[], bool],
        accepted: Callable[[socket.socket, Any], object],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._where = where  # for the log
        self._has_room = has_room
        self._accepted = accepted
        self._warned = False  # the log has a line about this lack of descriptors
        self._closed = False
        loop.watch(sock, READ, self._ready)

    def close(self) -> None:
        """Accept no more connections."""
        self._closed = True
        self._loop.forget(self._sock)

    def _ready(self, mask: int) -> None:
        for _ in range(_ACCEPTS):
            if self._closed:  # by what `accepted` led to
                return
            if not self._has_room():
                self._pause(_NO_ROOM_PAUSE)
                return
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                self._warned = False  # the queue is empty, so descriptors were sufficient
                return
            except ConnectionError:
                continue  # the client hung up before it was accepted
            except OSError as error:
                if not self._warned:
                    log.warning("%s: no connection can be accepted for now: %s", self._where, error)
                self._warned = True
                self._pause(_PAUSE)
                return
            self._accepted(sock, address)

    def _pause(self, seconds: float) -> None:
        self._loop.forget(self._sock)
        self._loop.at(time.monotonic() + seconds, self._resume)

    def _resume(self) -> None:
        if not self._closed:
            self._loop.watch(self._sock, READ, self._ready)
