"""The socket that paho uses: a buffer in memory between paho and a ByteStream.

Owned by netq/mqtt/broker.py, for one connection to a broker. It reads ahead, because paho reads single bytes. It hides
the real socket from paho, because paho does not report its errors.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque

from netq.buffers import Buffer
from netq.errors import SecurityError
from netq.identity import Protection
from netq.io.sockets import ByteStream

_READ_AHEAD = 128 * 1024  # bytes of one read
_CONNACK = 0x20  # the first byte of a broker
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # brokers leave Nagle's algorithm on: 40 ms for each short answer
_MAX_SHOWN = 16  # bytes of a non-MQTT answer in an error
_TLS_ALERT = 0x15  # the first byte of a TLS server's alert


class PahoSocket:
    """A connected socket. `fill` and `push` raise OSError and SecurityError; the methods for paho do not."""

    def __init__(self, stream: ByteStream) -> None:
        self.sock = stream.sock
        self._stream = stream
        self._answered = False  # the broker's first byte has arrived
        self._read_buffer = memoryview(bytearray(_READ_AHEAD))
        self._unread = memoryview(b"")  # the part of the buffer that paho has not read
        self._unsent: deque[memoryview] = deque()  # written by paho, not yet accepted by the stream

    @property
    def blocked(self) -> bool:
        """Whether the socket is full: call `push` when it is writable."""
        return self._stream.blocked

    @property
    def idle(self) -> bool:
        """Whether the socket has accepted everything."""
        return not self._unsent and not self._stream.blocked

    @property
    def more(self) -> bool:
        """Whether more can be read without waiting for the selector."""
        return bool(self._unread) or self._stream.more

    @property
    def protection(self) -> Protection | None:
        """The TLS of the connection to the broker."""
        return self._stream.protection

    def fill(self) -> None:
        """Receive, if paho has read everything before. Raises BlockingIOError if nothing has arrived."""
        if self._unread:
            return
        try:
            n = self._stream.recv_into(self._read_buffer)
            if n == 0:
                raise ConnectionResetError("it hung up")
        except ConnectionResetError as error:
            if self._answered:
                raise
            where = "is it a broker, and is there TLS at both ends, or at none?"
            raise ConnectionResetError(f"no answer ({error}); {where}") from error
        if not self._answered:
            self._check_first(bytes(self._read_buffer[: min(n, _MAX_SHOWN)]))
        if _QUICKACK is not None:
            self.sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)  # the kernel resets the option
        self._unread = self._read_buffer[:n]

    def push(self) -> None:
        """Send what paho has written, as far as the socket accepts it."""
        self._stream.push()
        while self._unsent and (sent := self._stream.send([self._unsent[0]])):
            self._unsent[0] = self._unsent[0][sent:]
            if not self._unsent[0]:
                self._unsent.popleft()

    def hang_up(self) -> None:
        """End the stream (TLS close_notify) and close the socket."""
        with contextlib.suppress(OSError, SecurityError):
            self._stream.finish()
        self.sock.close()

    def _check_first(self, first: bytes) -> None:
        if first[0] == _TLS_ALERT:
            raise ConnectionRefusedError("it speaks TLS; set SecurityOptions(certificate=...), or use its plain port")
        if first[0] != _CONNACK:
            raise ConnectionRefusedError(f"what answers there is no MQTT broker: it said {first!r}")
        self._answered = True

    # For paho.

    def recv(self, size: int) -> bytes:
        """Return up to `size` received bytes."""
        if not self._unread:
            raise BlockingIOError
        data = bytes(self._unread[:size])
        self._unread = self._unread[size:]
        return data

    def send(self, data: Buffer) -> int:
        """Buffer all of `data`."""
        self._unsent.append(memoryview(data))
        return len(data)

    def setblocking(self, flag: bool) -> None:
        """Do nothing: it never blocks."""

    def close(self) -> None:
        """Do nothing: paho's last packet may still have to be sent."""
