"""What a link sees of its socket: bytes in and out, without waiting. PlainSocket, or through a TLS layer.

What the TLS layer has taken from the socket and not given yet, no selector knows of. So it is `more`, not a full buffer
nor a readable socket, that says whether to receive again.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from netq.buffers import Buffer
from netq.errors import SecurityError
from netq.security.tls import OVERHEAD, RECORD, Tls

PIECE = 128 * 1024  # bytes received at once: what stays in a processor's own cache, from the system's copy to ours
_VECTOR = 512  # buffers in one sendmsg; Linux takes 1024 (IOV_MAX)
_CIPHERTEXT = 4 * (RECORD + OVERHEAD)  # bytes read at once for the TLS layer: what pays, whole records of a peer's,
_WHOLE = RECORD + 261  # and what suffices: the largest record that any peer may make, header, padding and tag included


class ByteStream(Protocol):
    """A socket that does not wait. All but `close` raise OSError or SecurityError when it is broken."""

    sock: socket.socket
    blocked: bool  # the system would not take all; `push` when the socket is writable
    hides: bool  # it may hold bytes that no selector knows of
    more: bool  # what `recv_into` returned last may not be all: call it again, soon, whatever the selector says

    def recv_into(self, buffer: memoryview) -> int:
        """Return the bytes received, 0 at the end; raises BlockingIOError when there are none now.

        One call does a bounded amount of work, whatever the peer sends.
        """

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Take bytes from the start of `buffers`; return how many, 0 when none can be taken now."""

    def push(self) -> bool:
        """Send what was taken and has not left; return whether more can be taken."""

    def finish(self) -> None:
        """Say that nothing more will be sent."""


class PlainSocket:
    """The socket itself."""

    hides = False

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.blocked = self.more = False
        self._error: OSError | None = None  # the system says it once

    def recv_into(self, buffer: memoryview) -> int:
        """Receive into the caller's own buffer, as long as there are whole pieces."""
        if self._error is not None:
            raise self._error
        if len(buffer) < PIECE:
            count = self.sock.recv_into(buffer)
            self.more = count == len(buffer) or not count
            return count
        self.more = False
        count = got = self.sock.recv_into(buffer[:PIECE])
        try:
            while got == PIECE and count < len(buffer):
                got = self.sock.recv_into(buffer[count : count + PIECE])
                count += got
        except BlockingIOError:
            return count
        except OSError as error:  # to be raised when the good bytes are taken
            self._error, got = error, 0
        self.more = count == len(buffer) or not got
        return count

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Hand the caller's own buffers to the system."""
        try:
            return self.sock.send(buffers[0]) if len(buffers) == 1 else self.sock.sendmsg(buffers[:_VECTOR])
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


class TlsSocket:
    """The socket under TLS."""

    hides = True

    def __init__(self, sock: socket.socket, tls: Tls) -> None:
        self.sock = sock
        self.blocked = self.more = False
        self._tls = tls
        self._piece = _WHOLE  # bytes of ciphertext that are received next
        self._ciphertext: Buffer = b""  # on its way to the socket

    def recv_into(self, buffer: memoryview) -> int:
        """Decrypt into the caller's buffer, as long as what comes brings plaintext; tiny records wait for a turn."""
        filled = 0
        try:
            filled = self._tls.read_into(buffer)
            while filled < len(buffer):
                asked = self._piece
                got = self._receive(asked)
                count = self._tls.read_into(buffer[filled:])
                filled += count
                meagre = 2 * count < got and filled < len(buffer)
                self._piece = _WHOLE if meagre else _CIPHERTEXT
                if meagre or got < asked:
                    break
        except EOFError:
            if not filled:
                return 0
        except (OSError, SecurityError):  # it will be said again, when the good bytes are taken
            if not filled:
                raise
        self.more = filled == len(buffer) or self._tls.ended
        if not filled:
            raise BlockingIOError
        return filled

    def _receive(self, size: int) -> int:
        data = self.sock.recv(size)
        if data:
            self._tls.received(data)
        else:
            self._tls.received_eof()
        return len(data)

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


def tune(sock: socket.socket) -> None:
    """Let what is sent leave at once; and without pacing where both ends have one address, so are on one machine and
    nothing is congested: there the timers of BBR, the default of some systems, take a third of the speed
    (docs/explanation/design.md).
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):
        if hasattr(socket, "TCP_CONGESTION") and sock.getpeername()[0] == sock.getsockname()[0]:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def wrap(sock: socket.socket, tls: Callable[[], Tls] | None) -> ByteStream:
    """Return the pipe of a connected socket; `tls` makes its layer, if there is to be one. Raises SecurityError."""
    return PlainSocket(sock) if tls is None else TlsSocket(sock, tls())
