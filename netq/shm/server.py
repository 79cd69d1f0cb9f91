"""The listening side of shared memory."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from netq import core
from netq.errors import ProtocolError
from netq.io.accept import Acceptor
from netq.io.loop import Loop
from netq.io.selector import READ
from netq.io.timers import Timer
from netq.options import CommunicatorOptions, Purpose
from netq.runtime.link import LinkListener
from netq.runtime.stream_link import Link
from netq.shm import control, rendezvous
from netq.shm.control import REFUSED, ControlSocket
from netq.shm.refusals import RefusalLog
from netq.shm.stream import RingStream

_MOST_WAITING = 256  # connections without a HELLO; they are of this machine's users, who send it with the connection


class ServerTransport:
    """A transport that makes a link of each accepted connection once its HELLO has brought the rings."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        rendezvous.check(listener.options)
        self.netloc = listener.options.netloc
        self._listener = listener
        self._loop = loop
        self._listening: rendezvous.ListeningSocket | None = None
        self._acceptor: Acceptor | None = None
        self._waiting: dict[ControlSocket, Timer] = {}  # connections without a HELLO, and their timeouts
        self._refusals = RefusalLog()

    def open(self) -> None:
        """Listen; raises AddressError."""
        self._listening = rendezvous.listen(self.netloc)
        self.netloc = self._listening.netloc
        self._acceptor = Acceptor(self._loop, self._listening.sock, self._where, self._has_room, self._accepted)

    def close(self) -> None:
        """Stop listening, and close the connections without a HELLO."""
        if self._acceptor is not None and self._listening is not None:
            self._acceptor.close()
            self._listening.close()
            self._acceptor = self._listening = None
        for connection in list(self._waiting):
            self._drop(connection)

    def _has_room(self) -> bool:
        return len(self._waiting) < _MOST_WAITING and self._listener.has_room()

    def _accepted(self, sock: socket.socket, address: object) -> None:
        try:
            rendezvous.check_user(sock)
        except OSError as error:
            self._refusals.warn(self._where, sock, str(error.strerror))
            sock.close()
            return
        connection = ControlSocket(sock)
        deadline = time.monotonic() + self._listener.options.connection.handshake_timeout
        self._waiting[connection] = self._loop.at(deadline, self._drop, connection)
        self._loop.watch(sock, READ, lambda mask: self._ready(connection))

    def _ready(self, connection: ControlSocket) -> None:
        """Read the first packet of a connection, which is to be HELLO."""
        try:
            packet = connection.receive()
        except OSError:
            packet = None
        if packet is None:
            self._drop(connection)
            return
        try:
            rings = control.accept_rings(packet)
        except (OSError, ProtocolError) as error:
            self._refuse(connection, str(error))
        else:
            self._forget(connection)
            address = f"{self._where}, process {rendezvous.peer(connection.sock)[0]}"
            stream = RingStream(connection, rings)
            self._listener.attach(Link(self._listener, self._loop, stream, self._listener.connect(), address))
        finally:
            if packet.fd is not None:
                os.close(packet.fd)

    def _refuse(self, connection: ControlSocket, reason: str) -> None:
        self._refusals.warn(self._where, connection.sock, reason)
        with contextlib.suppress(OSError):
            connection.send(REFUSED, reason.encode()[:256])
        self._drop(connection)

    def _drop(self, connection: ControlSocket) -> None:
        self._forget(connection)
        connection.sock.close()

    def _forget(self, connection: ControlSocket) -> None:
        self._waiting.pop(connection).cancel()
        self._loop.forget(connection.sock)

    @property
    def _where(self) -> str:
        return "{}:{}".format(*self.netloc)


class Communicator(core.Communicator):
    """A server on shared memory, for clients of the same user on this machine. Raises AddressError, InvalidOption."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.SERVER, ServerTransport)
