"""The connecting side of TCP."""

from __future__ import annotations

import socket

from netq import core
from netq.io.connect import Connector
from netq.io.loop import Loop
from netq.io.sockets import tune, wrap
from netq.options import CommunicatorOptions, Purpose, check_put_merge
from netq.runtime.link import LinkListener
from netq.runtime.stream_link import Link
from netq.security.tls import client_side, with_own_id


class ClientTransport:
    """A transport. Each `open` is one attempt to connect, to all addresses of the host."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        options = listener.options
        self.netloc = options.netloc
        self._listener = listener
        self._loop = loop
        self._tls = None if options.security is None else client_side(options.security, self.netloc.host)
        if options.security is not None:
            check_put_merge(options, "TLS")
        self._connector = Connector(loop, options, self._connected, lambda error: listener.lost(None, error))

    def open(self) -> None:
        """Look up the host, then connect."""
        self._connector.connect()

    def close(self) -> None:
        """Give up the attempt that is in progress."""
        self._connector.close()

    def _connected(self, sock: socket.socket) -> None:
        tune(sock)
        stream, connection = wrap(sock, self._tls), self._listener.connect()
        self._listener.attach(Link(self._listener, self._loop, stream, connection, self._connector.address))


class Communicator(core.Communicator):
    """A client on TCP. Raises SecurityError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(with_own_id(options), Purpose.CLIENT, ClientTransport)
