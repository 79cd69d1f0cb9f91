"""What paho sees of its socket: bytes in and out without waiting, plain or through a TLS layer.

Owned by netq/mqtt/broker.py, for one connection to a broker. Reads ahead, because paho asks for single bytes; keeps
ciphertext that the system would not take; and remembers the error that ended it, because paho does not tell.
"""

from __future__ import annotations

import contextlib
import socket

from netq.errors import SecurityError
from netq.memory import Buffer
from netq.security.tls import Tls

_AHEAD = 128 * 1024  # bytes read at once
_CONNACK = 0x20  # what a broker's first byte is
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # brokers leave Nagle's algorithm on: 40 ms for each short answer
_ALERT = 0x15  # what the first byte is of one who speaks TLS


class Channel:
    """A connected socket. `recv` and `send` raise BlockingIOError, OSError and SecurityError."""

    def __init__(self, sock: socket.socket, tls: Tls | None) -> None:
        self.sock = sock
        self.error: Exception | None = None  # what ended it
        self._tls = tls
        self._begun = False  # the broker has answered
        self._ahead = memoryview(bytearray(_AHEAD))
        self._here = memoryview(b"")  # of what was read ahead
        self._ciphertext: Buffer = b""  # on its way to the socket

    @property
    def blocked(self) -> bool:
        """Whether something is kept that the system would not take: `push` when the socket is writable."""
        return bool(self._ciphertext)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self.sock.fileno()

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def pending(self) -> int:
        """Return how many bytes were read ahead."""
        return len(self._here)

    def close(self) -> None:
        """Say so in TLS, and close the socket."""
        if self._tls is not None:
            self._tls.close()
            with contextlib.suppress(OSError, SecurityError):
                self.push()
        self.sock.close()

    def recv(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end."""
        if not self._here:
            n = self._guarded_read()
            self._here = self._ahead[:n]
        data = bytes(self._here[:size])
        self._here = self._here[len(data) :]
        return data

    def send(self, data: Buffer) -> int:
        """Take some of `data`; at least one byte."""
        try:
            sent = self.sock.send(data) if self._tls is None else self._encrypt(self._tls, data)
        except BlockingIOError:
            raise
        except (OSError, SecurityError, EOFError) as error:
            raise self._ended(error) from error
        return sent

    def push(self) -> None:
        """Send what is encrypted, as far as the socket goes."""
        tls = self._tls
        while tls is not None and (self._ciphertext or (ciphertext := tls.to_send())):
            self._ciphertext = self._ciphertext or memoryview(ciphertext)
            try:
                self._ciphertext = self._ciphertext[self.sock.send(self._ciphertext) :]
            except BlockingIOError:
                return
            except OSError as error:
                raise self._ended(error) from error

    def _encrypt(self, tls: Tls, data: Buffer) -> int:
        self.push()
        taken = 0 if self._ciphertext else tls.write([memoryview(data)])
        self.push()
        if not taken:
            raise BlockingIOError
        return taken

    def _guarded_read(self) -> int:
        try:
            n = self.sock.recv_into(self._ahead) if self._tls is None else self._decrypt(self._tls)
            if n == 0:
                raise ConnectionResetError("it hung up")
            if not self._begun:
                self._check_first()
            if _QUICKACK is not None:
                self.sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)  # it does not last
        except BlockingIOError:
            raise
        except ConnectionResetError as error:
            raise self._ended(error if self._begun else _nothing_said(error)) from error
        except (OSError, SecurityError, EOFError) as error:
            raise self._ended(error) from error
        return n

    def _check_first(self) -> None:
        first = bytes(self._ahead[:16])
        if first[0] == _ALERT and self._tls is None:
            raise ConnectionRefusedError("it speaks TLS; set SecurityOptions(certificate=...), or use its plain port")
        if first[0] != _CONNACK:
            raise ConnectionRefusedError(f"what answers there is no MQTT broker: it said {first!r}")
        self._begun = True

    def _decrypt(self, tls: Tls) -> int:
        filled = tls.read_into(self._ahead)
        while not filled:
            data = self.sock.recv(_AHEAD)
            if data:
                tls.received(data)
            else:
                tls.received_eof()
            try:
                filled = tls.read_into(self._ahead)
            except SecurityError as error:
                self._ended(error)  # first: `push` may find that the peer has gone
                raise
            finally:
                self.push()  # of the handshake, or the alert that says why
        return filled

    def _ended(self, error: Exception) -> OSError:
        """Return what paho understands, and keep what we want to say."""
        self.error = self.error or error
        return error if isinstance(error, OSError) else ConnectionResetError(str(error))


def _nothing_said(error: ConnectionResetError) -> ConnectionResetError:
    return ConnectionResetError(f"no answer ({error}); is it a broker, and is there TLS at both ends, or at none?")
