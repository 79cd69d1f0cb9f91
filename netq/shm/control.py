"""The socket of a link: it greets, rings the peer's bell, hands descriptors over, and its end is the peer's death.

Packets of a Unix SOCK_SEQPACKET socket; the first byte says what it is:

    1 HELLO    "NETQ-SHM", version u16, and the rings' descriptor     the client's first packet, and its only one
    2 BELL     -                                                      look into the rings
    3 SEGMENT  number u32, and its descriptor                         before the first GRANT that names it
    4 REFUSED  text, UTF-8                                            the server's answer to a HELLO that will not do

Never waits. Owned by a link.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

from netq.handlers import suppress

HELLO, BELL, SEGMENT, REFUSED = 1, 2, 3, 4
NUMBER = struct.Struct("<I")  # of a segment
_LONGEST = 512  # bytes of a packet
_FD = struct.Struct("i")
_ROOM = socket.CMSG_LEN(_FD.size) if hasattr(socket, "CMSG_LEN") else 0  # for one descriptor: the system closes others
_BELL = bytes([BELL])


class Packet(NamedTuple):
    """What came; the descriptor is whoever's who receives it."""

    kind: int
    body: bytes
    fd: int | None


class Control:
    """Packets in and out."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)

    def ring(self) -> None:
        """Ring the peer's bell. A peer whose socket is full has bells waiting, or is gone: that, its end tells."""
        with suppress(OSError):
            self.sock.send(_BELL)

    def send(self, kind: int, body: bytes = b"", fd: int | None = None) -> None:
        """Send a packet; raises OSError."""
        socket.send_fds(self.sock, [bytes([kind]), body], () if fd is None else (fd,))

    def take_bell(self) -> bool:
        """Take the next packet if it is a BELL; return whether it was."""
        try:
            if self.sock.recv(1, socket.MSG_PEEK) != _BELL:
                return False
            self.sock.recv(1)
        except OSError:
            return False
        return True

    def receive(self) -> Packet | None:
        """Return the next packet, None at the end; raises OSError, and BlockingIOError when there is none now."""
        data, files, _, _ = self.sock.recvmsg(_LONGEST, _ROOM, socket.MSG_CMSG_CLOEXEC)
        fd = _FD.unpack(files[0][2])[0] if files and files[0][1] == socket.SCM_RIGHTS else None
        if data:
            return Packet(data[0], data[1:], fd)
        if fd is not None:
            os.close(fd)
        return None
