"""The listening side of TCP."""

from __future__ import annotations

import socket
from typing import Any

from netq import core
from netq.io.accept import Acceptor
from netq.io.connect import bind, check_no_proxy
from netq.io.loop import Loop
from netq.io.sockets import tune, wrap
from netq.options import CommunicatorOptions, NetworkLocation, Purpose, check_put_merge
from netq.runtime.link import LinkListener
from netq.runtime.stream_link import Link
from netq.security.tls import server_side

_BACKLOG = 1024  # connections that wait in the system to be accepted


class ServerTransport:
    """A transport that makes a link of each accepted connection."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        check_no_proxy(listener.options, "a server listens, and connects to nothing")
        security = listener.options.security
        self.netloc = listener.options.netloc
        self._listener = listener
        self._loop = loop
        self._tls = None if security is None else server_side(security)
        if security is not None:
            check_put_merge(listener.options, "TLS")
        self._sock: socket.socket | None = None
        self._acceptor: Acceptor | None = None

    def open(self) -> None:
        """Listen; raises AddressError."""
        self._sock = bind(self.netloc, _BACKLOG)
        self.netloc = NetworkLocation(self.netloc.host, self._sock.getsockname()[1])
        where, has_room = "{}:{}".format(*self.netloc), self._listener.has_room
        self._acceptor = Acceptor(self._loop, self._sock, where, has_room, self._attach)

    def close(self) -> None:
        """Stop listening."""
        if self._acceptor is not None and self._sock is not None:
            self._acceptor.close()
            self._sock.close()
            self._acceptor = self._sock = None

    def _attach(self, sock: socket.socket, address: Any) -> None:
        tune(sock)
        stream = wrap(sock, self._tls)
        peer = "{}:{}".format(*address[:2])  # an IPv6 address has a flow label and a scope, too
        self._listener.attach(Link(self._listener, self._loop, stream, self._listener.connect(), peer))


class Communicator(core.Communicator):
    """A server on TCP. Raises AddressError, SecurityError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.SERVER, ServerTransport)
