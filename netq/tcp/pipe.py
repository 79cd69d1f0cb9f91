"""What a link sees of its socket: bytes in and out, without waiting. Plain, or through a TLS layer.

Both fill the buffer as far as the socket goes, so a short read says that there is no more for now.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Protocol

from netq.errors import SecurityError
from netq.memory import Buffer
from netq.security.tls import Tls

_VECTOR = 512  # buffers in one sendmsg; Linux takes 1024 (IOV_MAX)
_CIPHERTEXT = 64 * 1024  # bytes read at once for the TLS layer


class Pipe(Protocol):
    """A socket that does not wait. All but `close` raise OSError or SecurityError when it is broken."""

    sock: socket.socket
    blocked: bool  # the system would not take all; `push` when the socket is writable

    def recv_into(self, buffer: memoryview) -> int:
        """Return the bytes received, 0 at the end; raises BlockingIOError when there are none now."""

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Take bytes from the start of `buffers`; return how many, 0 when none can be taken now."""

    def push(self) -> bool:
        """Send what was taken and has not left; return whether more can be taken."""

    def finish(self) -> None:
        """Say that nothing more will be sent."""


class Plain:
    """The socket itself."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.blocked = False
        self.recv_into = sock.recv_into

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Hand the caller's own buffers to the system."""
        try:
            return self.sock.sendmsg(buffers[:_VECTOR])
        except BlockingIOError:
            self.blocked = True
            return 0

    def push(self) -> bool:
        """Nothing is kept here."""
        self.blocked = False
        return True

    def finish(self) -> None:
        """Send a FIN."""
        self.sock.shutdown(socket.SHUT_WR)


class Secure:
    """The socket under TLS."""

    def __init__(self, sock: socket.socket, tls: Tls) -> None:
        self.sock = sock
        self.blocked = False
        self._tls = tls
        self._ciphertext: Buffer = b""  # on its way to the socket

    def recv_into(self, buffer: memoryview) -> int:
        """Decrypt into the caller's buffer."""
        filled = 0
        try:
            filled = self._tls.read_into(buffer)
            while filled < len(buffer):
                data = self.sock.recv(_CIPHERTEXT)
                if data:
                    self._tls.received(data)
                else:
                    self._tls.received_eof()
                filled += self._tls.read_into(buffer[filled:])
        except EOFError:
            return filled
        except (OSError, SecurityError):  # it will be said again, when the good bytes are taken
            if not filled:
                raise
        return filled

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Encrypt as much as the socket will soon take."""
        try:
            taken = self._tls.write(buffers) if self.push() else 0
        except EOFError as error:  # its end came right behind its last bytes: nobody hears what we have to say
            raise ConnectionResetError(str(error)) from error
        self.push()
        return taken

    def push(self) -> bool:
        """Send what is encrypted, the handshake too."""
        while self._ciphertext or (ciphertext := self._tls.to_send()):
            self._ciphertext = self._ciphertext or memoryview(ciphertext)
            try:
                sent = self.sock.send(self._ciphertext)
            except BlockingIOError:
                self.blocked = True
                return False
            self._ciphertext = self._ciphertext[sent:]
        self.blocked = False
        return self._tls.handshaken

    def finish(self) -> None:
        """Say it in TLS too, so that the peer can tell the end from a cut."""
        self._tls.close()
        if self.push():
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_WR)
