"""Non-blocking byte streams, and how a link watches them: a plain socket, or one under TLS.

A TLS layer may hold bytes that it has read from the socket and not returned yet. A selector does not know of them. So
`more` says whether to receive again, and not a full buffer or a readable socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

from netq.buffers import NOTHING, Buffer
from netq.errors import ProtocolError, SecurityError
from netq.identity import Protection
from netq.io.interrupts import NO_SIGPIPE
from netq.io.loop import Loop
from netq.io.poller import Ready
from netq.security.engine import OVERHEAD, RECORD
from netq.security.tls import MAX_PENDING, Tls

PIECE = 128 * 1024  # bytes of one receive: they stay in the core's cache from the system's copy to ours
_VECTOR = 512  # buffers in one sendmsg; Linux takes 1024 (IOV_MAX)
# Bytes read at once for the TLS layer. Some whole records are efficient; the largest record that a peer may send, with
# header, padding and tag, is enough.
_CIPHERTEXT = 4 * (RECORD + OVERHEAD)
_WHOLE = RECORD + 261
# Bytes that are encrypted at once while the ciphertext of so many links waits for their sockets. Fewer links get larger
# pieces, which are faster (python -m benchmarks.federation.many).
_SMALL_PIECE, _MANY_WAITING = 32 * 1024, 32
_SIOCOUTQNSD = 0x894B  # linux/sockios.h: bytes in the queue that were not sent once
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close discards what is unsent, and sends RST

BROKEN = (OSError, SecurityError, ProtocolError)  # what the methods of a stream raise when it is broken


class ByteStream(Protocol):
    """A non-blocking stream, which belongs to one link. The methods raise an error of BROKEN when it is broken."""

    sock: socket.socket
    blocked: bool  # it did not take everything; call `push` when `ready` is called with WRITE
    hides: bool  # it may hold received bytes that no event tells of
    more: bool  # there may be more than the last `recv_into` returned: call it again soon
    unanswered: str  # what to say if the peer has ended the stream before it has sent anything

    @property
    def protection(self) -> Protection | None:
        """What TLS has negotiated; None without TLS, and before the end of its handshake."""

    def recv_into(self, buffer: memoryview, ahead: memoryview = NOTHING) -> int:
        """Return the bytes received, 0 at the end; raises BlockingIOError when there are none now.

        Bytes behind a full buffer may come into `ahead`.

        One call does a bounded amount of work, whatever the peer sends.
        """

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Take bytes from the start of `buffers`; return how many, which may be 0."""

    def push(self) -> bool:
        """Send what was taken and not sent yet; return whether more can be taken."""

    def finish(self) -> None:
        """Tell the peer that nothing more will be sent. From here on only `discard`, `reset` and `close` are called."""

    def discard(self) -> bool:
        """Drop received bytes; return False at the end. Raises BlockingIOError when there are none now."""

    def watch(self, loop: Loop, events: int, ready: Ready) -> None:
        """Call `ready` of the stream's events in a loop, also in users' threads. Replaces an earlier watch."""

    def forget(self) -> None:
        """Call it no more."""

    def bound_queue(self, size: int) -> None:
        """Let about `size` bytes wait in the system, no more: what waits there delays everything behind it."""

    def queued(self) -> int:
        """Return the bytes that wait in the system and could be bounded; 0 if that is unknown."""

    def ran_empty(self) -> bool:
        """Return whether none wait in the system; False if that is unknown."""

    def reset(self) -> None:
        """Have `close` drop what is unsent."""

    def close(self) -> None:
        """Release everything; forget the loop."""


class _Socket:
    """What a plain socket and one under TLS have in common: how a link watches and ends it."""

    unanswered = (
        "the peer hung up before it had sent anything; is the same protocol set on both sides, and SecurityOptions on "
        "both or on neither?"
    )

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.blocked = self.more = False
        self._loop: Loop | None = None
        self._queue_limit = 0  # bytes: TCP_NOTSENT_LOWAT

    def discard(self) -> bool:
        """See ByteStream. With TLS it is ciphertext that is dropped."""
        return bool(self.sock.recv(65536))

    def watch(self, loop: Loop, events: int, ready: Ready) -> None:
        """See ByteStream."""
        self._loop = loop
        loop.watch(self.sock, events, ready, shared=True)

    def forget(self) -> None:
        """See ByteStream."""
        if self._loop is not None:
            self._loop.forget(self.sock)

    def bound_queue(self, size: int) -> None:
        """See ByteStream. Set again after a change by a factor of two only."""
        if not size // 2 < self._queue_limit < size * 2 and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            self._queue_limit = size
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size)

    def queued(self) -> int:
        """Return the bytes in the socket that were never sent; 0 if the system does not know."""
        return self._unsent() or 0

    def ran_empty(self) -> bool:
        """See ByteStream."""
        return self._unsent() == 0

    def _unsent(self) -> int | None:
        """Return the bytes in the socket that were never sent; None if the system does not know (under qemu, say)."""
        if not sys.platform.startswith("linux"):
            return None
        try:
            return int.from_bytes(fcntl.ioctl(self.sock.fileno(), _SIOCOUTQNSD, bytes(4)), sys.byteorder)
        except OSError:
            return None

    def reset(self) -> None:
        """See ByteStream: `close` sends RST."""
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def close(self) -> None:
        """See ByteStream."""
        self.forget()
        self.sock.close()


class PlainSocket(_Socket):
    """A plain socket."""

    hides = False
    protection = None

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._error: OSError | None = None  # the system reports an error once; the next call raises it

    def recv_into(self, buffer: memoryview, ahead: memoryview = NOTHING) -> int:
        """Receive into the caller's buffer, until a piece is not full; and behind it into `ahead`."""
        if self._error is not None:
            raise self._error
        # A read that does not fill its memory has emptied the socket. Then `more` is False, which saves the call that
        # would only say so (EAGAIN), for each message. The end of the stream counts as more: the caller reads again
        # after these bytes, and gets the 0 that reports it.
        self.more = False
        count, rest = 0, buffer
        # Pieces that were received are returned first: they may be the peer's last frames. So an error behind them is
        # kept, because the system does not repeat one that it has reported.
        try:
            while len(rest) > PIECE:
                count += (got := self.sock.recv_into(rest[:PIECE]))
                if got < PIECE:
                    self.more = not got
                    return count
                rest = rest[PIECE:]
            got = self.sock.recvmsg_into((rest, ahead))[0] if ahead else self.sock.recv_into(rest)
        except BlockingIOError:
            if not count:
                raise
            return count
        except OSError as error:
            if not count:
                raise
            self._error, got = error, 0
        self.more = got == len(rest) + len(ahead) or not got
        return count + got

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Hand the caller's buffers to the system."""
        try:
            if len(buffers) == 1:
                return self.sock.send(buffers[0], NO_SIGPIPE)
            return self.sock.sendmsg(buffers[:_VECTOR], (), NO_SIGPIPE)
        except BlockingIOError:
            self.blocked = True
            return 0

    def push(self) -> bool:
        """Keep nothing."""
        self.blocked = False
        return True

    def finish(self) -> None:
        """Send a FIN."""
        self.sock.shutdown(socket.SHUT_WR)


_waiting = weakref.WeakSet["TlsSocket"]()  # whose ciphertext their full sockets have not taken, in all loops


class TlsSocket(_Socket):
    """A socket under TLS."""

    hides = True

    def __init__(self, sock: socket.socket, tls: Tls) -> None:
        super().__init__(sock)
        self._tls = tls
        self._piece = _WHOLE  # bytes of ciphertext to receive next
        self._ciphertext: Buffer = b""  # not yet taken by the socket

    @property
    def protection(self) -> Protection | None:
        """See ByteStream."""
        return self._tls.protection

    def recv_into(self, buffer: memoryview, ahead: memoryview = NOTHING) -> int:
        """Decrypt into the caller's buffer, while the ciphertext yields plaintext.

        Tiny records yield little for much work, so a peer that sends them gets one receive in each call.
        """
        filled = 0
        try:
            filled = self._tls.read_into(buffer)
            while filled < len(buffer):
                asked = self._piece
                got = self._receive(asked)
                count = self._tls.read_into(buffer[filled:])
                filled += count
                little = 2 * count < got and filled < len(buffer)
                self._piece = _WHOLE if little else _CIPHERTEXT
                if little or got < asked:
                    break
        except EOFError:
            if not filled:
                return 0
        except (OSError, SecurityError):  # raised again by the next call, after these bytes
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
        # Nothing is encrypted while older ciphertext waits. Bytes in a TLS record cannot be taken back or overtaken, so
        # a full socket would otherwise collect records here, ahead of each more urgent message.
        #
        # What has been encrypted for a full socket waits in memory. With a thousand links that is a thousand pieces, so
        # each of them gets a smaller one if many wait.
        most = MAX_PENDING if len(_waiting) < _MANY_WAITING else _SMALL_PIECE
        try:
            taken = self._tls.write(buffers, most) if self.push() else 0
        except EOFError as error:  # the peer has closed behind its last bytes: it reads no more
            raise ConnectionResetError(str(error)) from error
        self.push()
        return taken

    def push(self) -> bool:
        """Send what is encrypted, and the handshake."""
        # A socket that took a part must get the rest of the very same bytes: the layer cannot make a record twice.
        while self._ciphertext or (ciphertext := self._tls.to_send()):
            self._ciphertext = self._ciphertext or memoryview(ciphertext)
            try:
                sent = self.sock.send(self._ciphertext, NO_SIGPIPE)
            except BlockingIOError:
                self.blocked = True
                _waiting.add(self)
                return False
            self._ciphertext = self._ciphertext[sent:]
        if self.blocked:
            self.blocked = False
            _waiting.discard(self)
        return self._tls.handshaken

    def finish(self) -> None:
        """Send the end in TLS too, so that the peer can tell it from a lost link."""
        self._tls.close()
        if self.push():
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_WR)


def tune(sock: socket.socket) -> None:
    """Never wait, send without delay (TCP_NODELAY), and without pacing on one machine.

    Where both ends have the same address nothing is congested, but the timers of BBR, the default of some systems, take
    a third of the speed (docs/explanation/design.md).
    """
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):
        if hasattr(socket, "TCP_CONGESTION") and sock.getpeername()[0] == sock.getsockname()[0]:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def wrap(sock: socket.socket, tls: Callable[[], Tls] | None) -> ByteStream:
    """Return the stream of a connected socket; `tls` makes its TLS layer. Raises SecurityError."""
    return PlainSocket(sock) if tls is None else TlsSocket(sock, tls())
