"""The connecting side of TCP."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from typing import Any

from netq import core
from netq.link import Owner
from netq.loop import WRITE, Loop, Timer
from netq.options import CommunicatorOptions, Purpose
from netq.security.tls import client_side
from netq.tcp.link import Link
from netq.tcp.pipe import Pipe, Plain, Secure

Address = tuple[int, Any]  # family, and what connect takes


class Connector:
    """A transport: each `open` is one attempt at all the addresses that the host has."""

    def __init__(self, owner: Owner, loop: Loop) -> None:
        security = owner.options.security
        self.netloc = owner.options.netloc
        self._owner = owner
        self._loop = loop
        self._tls = None if security is None else client_side(security, self.netloc.host)
        self._sock: socket.socket | None = None  # while it connects
        self._timer: Timer | None = None
        self._closed = False

    def open(self) -> None:
        """Look the host up, then connect."""
        try:
            self._connect(_look_up(*self.netloc, numeric=True))
        except socket.gaierror:  # a name: asking for it may take seconds
            self._resolve_aside()

    def close(self) -> None:
        """Connect no more."""
        self._closed = True
        self._abandon()

    def _resolve_aside(self) -> None:
        try:
            threading.Thread(target=self._resolve, name="netq-resolve", daemon=True).start()
        except RuntimeError as error:  # the interpreter is ending
            self._loop.call(self._failed, [], OSError(f"the name cannot be resolved: {error}"))

    def _resolve(self) -> None:
        try:
            addresses = _look_up(*self.netloc, numeric=False)
        except OSError as error:
            self._loop.call(self._failed, [], OSError(f"the name cannot be resolved: {error.strerror}"))
        else:
            self._loop.call(self._connect, addresses)

    def _connect(self, addresses: list[Address]) -> None:
        if self._closed:
            return None
        (family, address), *others = addresses
        try:
            self._sock = sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(address)
        except OSError as error:
            return self._failed(others, error)
        late = TimeoutError("it does not answer")
        seconds = self._owner.options.connection.handshake_timeout
        self._timer = self._loop.at(time.monotonic() + seconds, self._failed, others, late)
        self._loop.watch(sock, WRITE, lambda mask: self._connected(sock, others))
        return None

    def _connected(self, sock: socket.socket, others: list[Address]) -> None:
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            return self._failed(others, OSError(number, os.strerror(number)))
        if _is_own_end(sock):
            return self._failed(others, ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)))
        self._loop.forget(sock)
        self._sock = None
        self._abandon()
        pipe: Pipe = Plain(sock) if self._tls is None else Secure(sock, self._tls())
        address = "{}:{}".format(*self.netloc)
        return self._owner.attach(Link(self._owner, self._loop, pipe, self._owner.connect(), address))

    def _failed(self, others: list[Address], error: OSError) -> None:
        self._abandon()
        if self._closed:
            return
        if others:
            self._connect(others)
        else:
            self._owner.lost(None, error)

    def _abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sock is not None:
            self._loop.forget(self._sock)
            self._sock.close()
            self._sock = None


class Communicator(core.Communicator):
    """A client on TCP. Raises SecurityError."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.CLIENT, Connector)


def _is_own_end(sock: socket.socket) -> bool:
    """Nobody listens, and the system gave this socket the very port that it connects to (RFC 9293, 3.5)."""
    with contextlib.suppress(OSError):
        return bool(sock.getsockname() == sock.getpeername())
    return False


def _look_up(host: str, port: int, *, numeric: bool) -> list[Address]:
    flags = socket.AI_NUMERICSERV | (socket.AI_NUMERICHOST if numeric else 0)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:  # an empty label, or one of more than 63 bytes
        raise socket.gaierror(socket.EAI_NONAME, f"no name of a host ({error})") from error
    return [(family, address) for family, _, _, _, address in found]
