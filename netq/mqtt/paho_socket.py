"""What paho takes for a socket: memory, between it and a pipe.

Owned by netq/mqtt/broker.py, for one connection to a broker. Reads ahead, because paho asks for single bytes; and keeps
the socket from paho, because paho does not tell its errors.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque

from netq.buffers import Buffer
from netq.errors import SecurityError
from netq.io.sockets import ByteStream

_AHEAD = 128 * 1024  # bytes read at once
_CONNACK = 0x20  # what a broker's first byte is
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # brokers leave Nagle's algorithm on: 40 ms for each short answer
_SHOWN = 16  # bytes of what is not MQTT
_ALERT = 0x15  # what the first byte is of one who speaks TLS


class PahoSocket:
    """A connected socket. `fill` and `push` raise OSError and SecurityError; what paho calls does not."""

    def __init__(self, pipe: ByteStream) -> None:
        self.sock = pipe.sock
        self._pipe = pipe
        self._begun = False  # the broker has answered
        self._ahead = memoryview(bytearray(_AHEAD))
        self._here = memoryview(b"")  # of what was read ahead
        self._out: deque[memoryview] = deque()  # what paho has written and the pipe has not taken

    @property
    def blocked(self) -> bool:
        """Whether the system would not take all: `push` when the socket is writable."""
        return self._pipe.blocked

    @property
    def idle(self) -> bool:
        """Whether the system has taken all there was."""
        return not self._out and not self._pipe.blocked

    @property
    def more(self) -> bool:
        """Whether to receive again, whatever the selector says."""
        return bool(self._here) or self._pipe.more

    def fill(self) -> None:
        """Receive, if paho has read all that came before; raises BlockingIOError too."""
        if self._here:
            return
        try:
            n = self._pipe.recv_into(self._ahead)
            if n == 0:
                raise ConnectionResetError("it hung up")
        except ConnectionResetError as error:
            if self._begun:
                raise
            where = "is it a broker, and is there TLS at both ends, or at none?"
            raise ConnectionResetError(f"no answer ({error}); {where}") from error
        if not self._begun:
            self._check_first(bytes(self._ahead[: min(n, _SHOWN)]))
        if _QUICKACK is not None:
            self.sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)  # it does not last
        self._here = self._ahead[:n]

    def push(self) -> None:
        """Send what paho has written, as far as the socket goes."""
        self._pipe.push()
        while self._out and (sent := self._pipe.send([self._out[0]])):
            self._out[0] = self._out[0][sent:]
            if not self._out[0]:
                self._out.popleft()

    def hang_up(self) -> None:
        """Say so, and close the socket."""
        with contextlib.suppress(OSError, SecurityError):
            self._pipe.finish()
        self.sock.close()

    def _check_first(self, first: bytes) -> None:
        if first[0] == _ALERT:
            raise ConnectionRefusedError("it speaks TLS; set SecurityOptions(certificate=...), or use its plain port")
        if first[0] != _CONNACK:
            raise ConnectionRefusedError(f"what answers there is no MQTT broker: it said {first!r}")
        self._begun = True

    # What paho calls.

    def recv(self, size: int) -> bytes:
        """Return up to `size` bytes of what has come."""
        if not self._here:
            raise BlockingIOError
        data = bytes(self._here[:size])
        self._here = self._here[size:]
        return data

    def send(self, data: Buffer) -> int:
        """Take all of it."""
        self._out.append(memoryview(data))
        return len(data)

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def close(self) -> None:
        """Not yet: what paho wrote last may have to leave."""
