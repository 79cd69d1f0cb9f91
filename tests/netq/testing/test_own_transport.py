"""A toy transport that keeps the whole contract of docs/how-to/transport.md, in under 100 lines of code."""

import random
import socket
import time

import pytest

from netq import NetworkLocation, Purpose
from netq.core import Communicator
from netq.errors import AddressError
from netq.io.baton import Worker
from netq.io.loop import Loop
from netq.io.selector import READ, WRITE
from netq.runtime.endpoint import TransportFactory
from netq.runtime.link import LinkListener
from netq.testing.conformance import check_communicator


class Link:
    protection = None

    def __init__(self, listener: LinkListener, loop: Loop, sock: socket.socket) -> None:
        self.connection, self.address = listener.connect(), "a toy"
        self.peer: Worker | None = None
        self.inline = False
        self._listener, self._loop, self._sock, self._unsent = listener, loop, sock, b""
        sock.setblocking(False)
        loop.watch(sock, READ, self._ready)

    def flush(self) -> None:
        try:
            while data := self._unsent or b"".join(self.connection.to_send(65536, time.monotonic())):
                self._unsent = data
                self._unsent = data[self._sock.send(data) :]
        except BlockingIOError:
            self._loop.watch(self._sock, READ | WRITE, self._ready)
        except OSError as error:
            self._lost(error)

    def receive(self) -> None:
        raise AssertionError("it is not inline")

    def keep(self) -> None:
        pass  # unsent bytes here are a copy

    def close(self) -> None:
        self.flush()
        self._loop.forget(self._sock)
        self._sock.close()

    def move(self, loop: Loop) -> None:
        self._loop.forget(self._sock)
        self._loop = loop
        loop.call(loop.watch, self._sock, READ, self._ready)

    def _ready(self, mask: int) -> None:
        try:
            if mask & READ:
                self._receive()
        except OSError as error:
            self._lost(error)
        if self._sock.fileno() >= 0:
            self._loop.watch(self._sock, READ, self._ready)
            self.flush()

    def _receive(self) -> None:
        n = self._sock.recv_into(self.connection.buffer())
        if n == 0:
            raise ConnectionResetError("the peer hung up")
        if events := self.connection.received(n, time.monotonic()):
            self._listener.deliver(self, events)

    def _lost(self, error: OSError) -> None:
        if self._sock.fileno() >= 0:
            self._loop.forget(self._sock)
            self._sock.close()
            self._listener.lost(self, error)


class Listener:
    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        self.netloc = NetworkLocation("toy", listener.options.netloc.port or random.randrange(1, 65536))
        self._listener, self._loop, self._sock = listener, loop, socket.socket(socket.AF_UNIX)

    def open(self) -> None:
        try:
            self._sock.bind(f"\0toy {self.netloc.port}")
        except OSError as error:
            raise AddressError(f"cannot listen at {self.netloc}: {error}") from error
        self._sock.listen(128)
        self._loop.watch(self._sock, READ, lambda mask: self._accept())

    def close(self) -> None:
        self._loop.forget(self._sock)
        self._sock.close()

    def _accept(self) -> None:
        self._listener.attach(Link(self._listener, self._loop, self._sock.accept()[0]))


class Connector:
    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        self.netloc, self._listener, self._loop = listener.options.netloc, listener, loop

    def open(self) -> None:
        self._loop.call(self._connect)

    def close(self) -> None:
        pass  # no attempt lasts longer than one call

    def _connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(f"\0toy {self.netloc.port}")  # succeeds or fails at once
            self._listener.attach(Link(self._listener, self._loop, sock))
        except OSError as error:
            sock.close()
            self._listener.lost(None, error)


@pytest.mark.slow
def test_conformance() -> None:
    transports: dict[Purpose, TransportFactory] = {Purpose.SERVER: Listener, Purpose.CLIENT: Connector}
    check_communicator(lambda purpose, options: Communicator(options, purpose, transports[purpose]))
