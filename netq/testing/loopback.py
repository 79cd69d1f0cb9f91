"""A transport within one process: no socket, bytes are handed from loop to loop. The smallest whole example of
one (docs/how-to/transport.md), and a server and clients for tests that need no network.

Owns the table of ports; what is listened at here is seen by this process alone. Nothing here waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from netq import core
from netq.buffers import Buffer
from netq.errors import AddressError
from netq.io.baton import Worker
from netq.io.loop import Loop
from netq.options import CommunicatorOptions, NetworkLocation, Purpose
from netq.protocol.connection import Connection
from netq.runtime.link import LinkListener

_BATCH = 1024 * 1024  # bytes handed over at once
_FREE = range(49152, 65536)  # what port 0 chooses from, as RFC 6335 has it

_servers: dict[int, ServerTransport] = {}  # by port


class Link:
    """One of two ends. The bytes are the sender's own buffers: the other end copies them when it takes them."""

    inline = False

    def __init__(self, listener: LinkListener, loop: Loop, connection: Connection, address: str) -> None:
        self.connection = connection
        self.address = address
        self.peer: Worker | None = None
        self.other: Link | None = None  # None: hung up
        self._listener = listener
        self._loop = loop

    def flush(self) -> None:
        """Hand over all there is; the window of the session bounds it."""
        while self.other and (buffers := self.connection.to_send(_BATCH, time.monotonic())):
            self.other._call(self.other._receive, buffers)

    def receive(self) -> bool:
        """Nothing: that is for the loop's thread."""
        return False

    def keep(self) -> None:
        """Nothing is kept here."""

    def close(self) -> None:
        """Hand over the rest, and hang up."""
        self.flush()
        if self.other:
            self.other._call(self.other._hung_up)
            self.other = None

    def move(self, loop: Loop) -> None:
        """Nothing is on its way then: the peer waits for an answer to its greeting."""
        self._loop = loop

    def _call(self, step: Callable[..., None], *args: Sequence[Buffer]) -> None:
        self._loop.call(step, *args)

    def _receive(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            if not self.other:
                return
            if events := self.connection.feed(memoryview(buffer), time.monotonic()):
                self._listener.deliver(self, events)
        self.flush()

    def _hung_up(self) -> None:
        if self.other:
            self.other = None
            self._listener.lost(self, ConnectionResetError("the peer hung up"))


class ServerTransport:
    """A server's transport."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        self.netloc = listener.options.netloc
        self.listener = listener
        self.loop = loop

    def open(self) -> None:
        """Take the port; raises AddressError."""
        host, port = self.netloc
        for free in [port] if port else _FREE:
            if _servers.setdefault(free, self) is self:
                self.netloc = NetworkLocation(host, free)
                return
        raise AddressError(f"cannot listen at {host}:{port} (netloc): taken in this process; choose another port, or 0")

    def close(self) -> None:
        """Give the port back."""
        if _servers.get(self.netloc.port) is self:
            del _servers[self.netloc.port]


class ClientTransport:
    """A client's transport."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        self.netloc = listener.options.netloc
        self._listener = listener
        self._loop = loop

    def open(self) -> None:
        """Join two links, if there is a server."""
        address = "{}:{}".format(*self.netloc)
        server = _servers.get(self.netloc.port)
        if server is None:
            self._loop.call(self._listener.lost, None, ConnectionRefusedError("nobody listens there"))
            return
        near = Link(self._listener, self._loop, self._listener.connect(), address)
        near.other = far = Link(server.listener, server.loop, server.listener.connect(), "this process")
        far.other = near
        server.loop.call(server.listener.attach, far)
        self._loop.call(self._listener.attach, near)

    def close(self) -> None:
        """Nothing is under way between two calls."""


class Server(core.Communicator):
    """A server in this process. Raises AddressError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.SERVER, ServerTransport)


class Client(core.Communicator):
    """A client of a server in this process."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.CLIENT, ClientTransport)
