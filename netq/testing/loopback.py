"""A transport within one process: it hands bytes from loop to loop, without a socket.

It is the smallest complete example of a transport (docs/how-to/transport.md), and serves tests that need no network.
It owns the table of ports; no other process sees them. Nothing here waits.
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
_FREE = range(49152, 65536)  # for port 0: the dynamic ports of RFC 6335

_servers: dict[int, ServerTransport] = {}  # by port


class Link:
    """One of two ends. It hands over the sender's own buffers, and the other end copies them."""

    inline = False
    protection = None

    def __init__(self, listener: LinkListener, loop: Loop, connection: Connection, address: str) -> None:
        self.connection = connection
        self.address = address
        self.peer: Worker | None = None
        self.other: Link | None = None  # None: this end or the other has hung up
        self._listener = listener
        self._loop = loop

    def flush(self) -> None:
        """Hand over all bytes that the session has; its window bounds them."""
        while self.other and (buffers := self.connection.to_send(_BATCH, time.monotonic())):
            self.other._call(self.other._receive, buffers)

    def receive(self) -> None:
        """Do nothing: only the loop's thread receives."""

    def keep(self) -> None:
        """Do nothing: there are no unsent bytes here."""

    def close(self) -> None:
        """Hand over the rest, and hang up."""
        self.flush()
        if self.other:
            self.other._call(self.other._hung_up)
            self.other = None

    def move(self, loop: Loop) -> None:
        """Continue in another loop. Nothing is in transit: the peer waits for the answer to its greeting."""
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
        """Reserve the port; raises AddressError."""
        host, port = self.netloc
        for free in [port] if port else _FREE:
            if _servers.setdefault(free, self) is self:
                self.netloc = NetworkLocation(host, free)
                return
        raise AddressError(f"cannot listen at {host}:{port} (netloc): taken in this process; choose another port, or 0")

    def close(self) -> None:
        """Free the port."""
        if _servers.get(self.netloc.port) is self:
            del _servers[self.netloc.port]


class ClientTransport:
    """A client's transport."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        self.netloc = listener.options.netloc
        self._listener = listener
        self._loop = loop

    def open(self) -> None:
        """Connect two links, if a server listens."""
        address = "{}:{}".format(*self.netloc)
        server = _servers.get(self.netloc.port)
        if server is None:
            self._loop.call(self._listener.lost, None, ConnectionRefusedError("no server listens there"))
            return
        near = Link(self._listener, self._loop, self._listener.connect(), address)
        near.other = far = Link(server.listener, server.loop, server.listener.connect(), "this process")
        far.other = near
        server.loop.call(server.listener.attach, far)
        self._loop.call(self._listener.attach, near)

    def close(self) -> None:
        """Do nothing: no attempt takes longer than one call."""


class Server(core.Communicator):
    """A server in this process. Raises AddressError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.SERVER, ServerTransport)


class Client(core.Communicator):
    """A client of a server in this process."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.CLIENT, ClientTransport)
