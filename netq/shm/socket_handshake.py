"""How a ring socket comes to be: three packets of the client bring the rings and two eventfds.

    1 HELLO  "NETQRING", version u16, and the rings' descriptor (control.py)
    5 BELL   -, and the eventfd on which the server's reader sleeps
    5 BELL   -, and the eventfd on which the client's reader sleeps

A server that finds something else sends REFUSED and closes the connection. Never waits.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from netq.errors import ProtocolError
from netq.io.interrupts import suppress
from netq.shm import bell
from netq.shm.control import REFUSED, RING_SOCKET, ControlSocket, Packet, RingPair, accept_rings, offer_rings

BELL = 5


class Parts(NamedTuple):
    """The parts of a ring socket. The bells (bell.py): this side's reader sleeps on `own`, the peer's on `other`."""

    control: ControlSocket
    rings: RingPair
    own: int
    other: int

    def close(self) -> None:
        """Close everything."""
        self.control.sock.close()
        self.rings.close()
        os.close(self.own)
        os.close(self.other)


def offer(control: ControlSocket, size: int) -> Parts:
    """Make what the two sides share, and send it to the server; raises OSError. Owns the connection from then on."""
    bells: list[int] = []
    rings: RingPair | None = None
    try:
        bells += [bell.make()]
        bells += [bell.make()]
        rings = offer_rings(control, RING_SOCKET, size)
        for fd in bells:
            control.send(BELL, fd=fd)
    except BaseException:
        for fd in bells:
            os.close(fd)
        if rings is not None:
            rings.close()
        raise
    theirs, ours = bells
    return Parts(control, rings, ours, theirs)


class Arrival:
    """A connection at a server that has not brought everything yet."""

    def __init__(self, sock: socket.socket) -> None:
        self.control = ControlSocket(sock)
        self._rings: RingPair | None = None
        self._bells: list[int] = []

    def take(self) -> Parts | None:
        """Read packets; return the parts when all have come, None before. Raises ProtocolError and OSError."""
        while self._rings is None or len(self._bells) < 2:
            try:
                packet = self.control.receive()
            except BlockingIOError:
                return None
            if packet is None:
                raise ConnectionResetError("the client has hung up")
            self._add(packet)
        own, other = self._bells
        parts = Parts(self.control, self._rings, own, other)
        self._rings, self._bells = None, []
        return parts

    def refuse(self, reason: str) -> None:
        """Tell the client why, and close everything."""
        with suppress(OSError):
            self.control.send(REFUSED, reason.encode()[:256])
        self.close()

    def close(self) -> None:
        """Close everything."""
        self.control.sock.close()
        if self._rings is not None:
            self._rings.close()
        for fd in self._bells:
            os.close(fd)
        self._rings, self._bells = None, []

    def _add(self, packet: Packet) -> None:
        kind, _, fd = packet
        try:
            if self._rings is None:
                self._rings = accept_rings(packet, RING_SOCKET)
            elif kind == BELL and fd is not None and bell.is_bell(fd):
                self._bells.append(fd)
                fd = None
            else:
                raise ProtocolError(f"a packet of kind {kind} without an eventfd; expected kind {BELL} with one")
        finally:
            if fd is not None:
                os.close(fd)
