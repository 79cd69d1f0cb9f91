"""The listening side of TCP."""

from __future__ import annotations

import logging
import socket
import time

from netq import core
from netq.io.connect import bind
from netq.io.loop import Loop
from netq.io.selector import READ
from netq.io.sockets import wrap
from netq.options import CommunicatorOptions, NetworkLocation, Purpose, check_put_merge
from netq.runtime.link import LinkListener
from netq.security.tls import server_side
from netq.tcp.link import Link

log = logging.getLogger("netq")

_BACKLOG = 1024
_ACCEPTS = 64  # connections accepted before the others have their turn
_PAUSE = 1.0  # seconds, when the system has no descriptors left


class ServerTransport:
    """A transport: accepts connections."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        security = listener.options.security
        self.netloc = listener.options.netloc
        self._listener = listener
        self._loop = loop
        self._tls = None if security is None else server_side(security)
        if security is not None:
            check_put_merge(listener.options, "TLS")
        self._sock: socket.socket | None = None
        self._starved = False  # and the log has been told

    def open(self) -> None:
        """Listen; raises AddressError."""
        self._sock = bind(self.netloc, _BACKLOG)
        self.netloc = NetworkLocation(self.netloc.host, self._sock.getsockname()[1])
        self._loop.watch(self._sock, READ, self._accept)

    def close(self) -> None:
        """Listen no more."""
        if self._sock is not None:
            self._loop.forget(self._sock)
            self._sock.close()
            self._sock = None

    def _accept(self, mask: int) -> None:
        for _ in range(_ACCEPTS):
            if self._sock is None:
                return
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                self._starved = False  # nobody waits any more
                return
            except ConnectionError:
                continue  # it was gone before we looked
            except OSError as error:
                self._pause(error)
                return
            self._attach(sock, "{}:{}".format(*address[:2]))

    def _attach(self, sock: socket.socket, address: str) -> None:
        pipe = wrap(sock, self._tls)
        self._listener.attach(Link(self._listener, self._loop, pipe, self._listener.connect(), address))

    def _pause(self, error: OSError) -> None:
        """The system has no descriptor or memory for another: those who knock wait in its queue."""
        if not self._starved:
            log.warning("%s:%s: no connection can be accepted for now: %s", *self.netloc, error)
        self._starved = True
        if self._sock is not None:
            self._loop.forget(self._sock)
        self._loop.at(time.monotonic() + _PAUSE, self._resume)

    def _resume(self) -> None:
        if self._sock is not None:
            self._loop.watch(self._sock, READ, self._accept)


class Communicator(core.Communicator):
    """A server on TCP. Raises AddressError, SecurityError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.SERVER, ServerTransport)
