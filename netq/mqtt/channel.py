"""What paho sees of a pipe: a socket that never waits.

Owned by netq/mqtt/broker.py, for one connection to a broker. Reads ahead, because paho asks for single bytes; and
remembers the error that ended it, because paho does not tell.
"""

from __future__ import annotations

import contextlib
import socket

from netq.errors import SecurityError
from netq.memory import Buffer
from netq.pipe import Pipe

_AHEAD = 128 * 1024  # bytes read at once
_CONNACK = 0x20  # what a broker's first byte is
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # brokers leave Nagle's algorithm on: 40 ms for each short answer
_SHOWN = 16  # bytes of what is not MQTT
_ALERT = 0x15  # what the first byte is of one who speaks TLS


class Channel:
    """A connected socket. `recv` and `send` raise BlockingIOError and OSError; `error` tells what they cannot."""

    def __init__(self, pipe: Pipe) -> None:
        self.sock = pipe.sock
        self.error: Exception | None = None  # what ended it
        self._pipe = pipe
        self._begun = False  # the broker has answered
        self._ahead = memoryview(bytearray(_AHEAD))
        self._here = memoryview(b"")  # of what was read ahead

    @property
    def blocked(self) -> bool:
        """Whether the system would not take all: `push` when the socket is writable."""
        return self._pipe.blocked

    @property
    def more(self) -> bool:
        """Whether to receive again, whatever the selector says."""
        return bool(self._here) or self._pipe.more

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self.sock.fileno()

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def close(self) -> None:
        """Say so, and close the socket."""
        with contextlib.suppress(OSError, SecurityError):
            self._pipe.finish()
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
            sent = self._pipe.send([memoryview(data)])
        except (OSError, SecurityError) as error:
            raise self._ended(error) from error
        if not sent:
            raise BlockingIOError
        return sent

    def push(self) -> None:
        """Send what was taken and has not left, as far as the socket goes."""
        try:
            self._pipe.push()
        except (OSError, SecurityError) as error:
            raise self._ended(error) from error

    def _guarded_read(self) -> int:
        try:
            n = self._pipe.recv_into(self._ahead)
            if n == 0:
                raise ConnectionResetError("it hung up")
            if not self._begun:
                self._check_first(bytes(self._ahead[: min(n, _SHOWN)]))
            if _QUICKACK is not None:
                self.sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)  # it does not last
        except BlockingIOError:
            raise
        except ConnectionResetError as error:
            raise self._ended(error if self._begun else _nothing_said(error)) from error
        except (OSError, SecurityError) as error:
            raise self._ended(error) from error
        return n

    def _check_first(self, first: bytes) -> None:
        if first[0] == _ALERT:
            raise ConnectionRefusedError("it speaks TLS; set SecurityOptions(certificate=...), or use its plain port")
        if first[0] != _CONNACK:
            raise ConnectionRefusedError(f"what answers there is no MQTT broker: it said {first!r}")
        self._begun = True

    def _ended(self, error: Exception) -> OSError:
        """Return what paho understands, and keep what we want to say."""
        self.error = self.error or error
        return error if isinstance(error, OSError) else ConnectionResetError(str(error))


def _nothing_said(error: ConnectionResetError) -> ConnectionResetError:
    return ConnectionResetError(f"no answer ({error}); is it a broker, and is there TLS at both ends, or at none?")
