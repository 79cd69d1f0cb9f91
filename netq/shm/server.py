"""The listening side of shared memory."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time

from netq import core
from netq.errors import ProtocolError
from netq.io.loop import Loop
from netq.io.selector import READ
from netq.io.timers import Timer
from netq.options import CommunicatorOptions, Purpose
from netq.runtime.link import LinkListener
from netq.runtime.log_dedup import LogDedup
from netq.shm import control, rendezvous
from netq.shm.control import REFUSED, ControlSocket
from netq.shm.link import Link
from netq.shm.segments import Pool
from netq.text import printable

log = logging.getLogger("netq")

_ACCEPTS = 64  # connections accepted before the others have their turn
_PAUSE = 1.0  # seconds, when the system has no descriptors left
_NEWS = 60.0  # seconds after which the log is told again what it has been told


class ServerTransport:
    """A transport: accepts connections, and makes links of those that bring their rings."""

    def __init__(self, listener: LinkListener, loop: Loop) -> None:
        rendezvous.check(listener.options)
        self.netloc = listener.options.netloc
        self._listener = listener
        self._loop = loop
        self._door: rendezvous.ListeningSocket | None = None
        self._guests: dict[ControlSocket, Timer] = {}  # have not said HELLO; and what cuts them
        self._pool = Pool(listener.options.connection.memory)
        self._starved = False  # and the log has been told
        self._log_dedup = LogDedup()

    def open(self) -> None:
        """Listen; raises AddressError."""
        self._door = rendezvous.listen(self.netloc)
        self.netloc = self._door.netloc
        self._loop.watch(self._door.sock, READ, self._accept)

    def close(self) -> None:
        """Listen no more."""
        if self._door is not None:
            self._loop.forget(self._door.sock)
            self._door.close()
            self._door = None
        for guest in list(self._guests):
            self._dismiss(guest)

    def _accept(self, mask: int) -> None:
        for _ in range(_ACCEPTS):
            if self._door is None:
                return
            try:
                sock, _ = self._door.sock.accept()
            except BlockingIOError:
                self._starved = False  # nobody waits any more
                return
            except ConnectionError:
                continue  # it was gone before we looked
            except OSError as error:
                self._pause(error)
                return
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        try:
            rendezvous.check_user(sock)
        except OSError as error:
            self._complain(sock, str(error.strerror))
            sock.close()
            return
        guest = ControlSocket(sock)
        late = time.monotonic() + self._listener.options.connection.handshake_timeout
        self._guests[guest] = self._loop.at(late, self._dismiss, guest)
        self._loop.watch(sock, READ, lambda mask: self._greeted(guest))

    def _greeted(self, guest: ControlSocket) -> None:
        try:
            packet = guest.receive()
        except OSError:
            packet = None
        if packet is None:
            self._dismiss(guest)
            return
        try:
            found = control.take(packet)
        except (OSError, ProtocolError) as error:
            self._refuse(guest, str(error))
        else:
            self._forget(guest)
            address = f"{self._where}, process {rendezvous.peer(guest.sock)[0]}"
            self._listener.attach(Link(self._listener, self._loop, guest, found, self._pool, address))
        finally:
            if packet.fd is not None:
                os.close(packet.fd)

    def _refuse(self, guest: ControlSocket, reason: str) -> None:
        self._complain(guest.sock, reason)
        with contextlib.suppress(OSError):
            guest.send(REFUSED, reason.encode()[:256])
        self._dismiss(guest)

    def _complain(self, sock: socket.socket, reason: str) -> None:
        """Tell the log, of each user a few things a minute: whoever knocks for ever fills no disk."""
        now, user = time.monotonic(), f"user {rendezvous.peer(sock)[1]}"
        is_new = self._log_dedup.is_new(user, reason, now)
        self._log_dedup.forget_at(user, now + _NEWS)
        level = logging.WARNING if is_new else logging.DEBUG
        log.log(level, "%s: %s; the connection was closed", self._where, printable(reason))

    def _dismiss(self, guest: ControlSocket) -> None:
        self._forget(guest)
        guest.sock.close()

    def _forget(self, guest: ControlSocket) -> None:
        self._guests.pop(guest).cancel()
        self._loop.forget(guest.sock)

    def _pause(self, error: OSError) -> None:
        """The system has no descriptor or memory for another: those who knock wait in its queue."""
        if not self._starved:
            log.warning("%s: no connection can be accepted for now: %s", self._where, error)
        self._starved = True
        if self._door is not None:
            self._loop.forget(self._door.sock)
        self._loop.at(time.monotonic() + _PAUSE, self._resume)

    def _resume(self) -> None:
        if self._door is not None:
            self._loop.watch(self._door.sock, READ, self._accept)

    @property
    def _where(self) -> str:
        return "{}:{}".format(*self.netloc)


class Communicator(core.Communicator):
    """A server on shared memory, for clients of the same user on this machine. Raises AddressError, InvalidOption."""

    def __init__(self, options: CommunicatorOptions | None = None) -> None:
        super().__init__(options, Purpose.SERVER, ServerTransport)
