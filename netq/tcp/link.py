"""One socket, and the Connection whose bytes it moves. Lives in a loop; never waits, never retries."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys
import time
from collections.abc import Callable

from netq.appetite import Appetite
from netq.connection import Connection, State
from netq.errors import SecurityError
from netq.link import Owner
from netq.loop import READ, WRITE, Loop, Timer
from netq.memory import Buffer
from netq.pipe import Pipe, hasten
from netq.tcp.pace import MOST, Pace

_SMALL = 64 * 1024  # bytes up to which joining costs less than a longer vector
_READS = 64  # times that is received in one turn, at most: where the clock of the processor is coarse
_WRITES = 4  # batches sent before the others have their turn
_SIOCOUTQNSD = 0x894B  # linux/sockios.h
_PARTING = 1.0  # seconds to wait for the peer's end after ours
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close throws away what has not arrived, and says RST


class Link:
    """Moves bytes between a connected socket and a connection."""

    def __init__(self, owner: Owner, loop: Loop, pipe: Pipe, connection: Connection, address: str) -> None:
        self.connection = connection
        self.address = address
        self.peer: object | None = None
        self._owner = owner
        self._loop = loop
        self._pipe = pipe
        self._merge = owner.options.connection.put_merge
        self._unsent: list[memoryview] = []
        self._pace = Pace()
        self._appetite = Appetite()
        self._limit = 0  # bytes that may wait in the system
        self._kept = False  # what is unsent is a copy
        self._interest = 0
        self._due = 0  # what the loop has been asked to go on with in its next turn
        self._heard = False  # anything that is for the connection
        self._closing = self._gone = False
        self._parting: Timer | None = None
        pipe.sock.setblocking(False)
        hasten(pipe.sock)
        self._limit_queue()
        self._watch(READ)

    def flush(self) -> None:
        """Send until there is nothing to send, or the socket is full."""
        if not self._gone and not self._interest & WRITE:
            self._guarded(self._send)

    def keep(self) -> None:
        """Go on with a copy, of one batch at most."""
        if not self._kept:
            self._unsent = [memoryview(bytes(buffer)) for buffer in self._unsent]
            self._kept = True

    def close(self) -> None:
        """Send what the connection has left to say, then part: the peer must not lose it to a reset.

        But a link that was given up, as nobody answers, is reset: the system would go on for minutes to send what is of
        no use any more, and an INI that arrives so late is taken for a newer link than the one that is in use by then.
        """
        if self._closing or self._gone:
            return
        self._closing = True
        if self._given_up():
            self._reset()
        else:
            self._parting = self._loop.at(time.monotonic() + _PARTING, self._go)
            self.flush()
            self._guarded(self._part)

    def move(self, loop: Loop) -> None:
        """Go on in another loop."""
        self._loop.forget(self._pipe.sock)
        self._loop, events = loop, self._interest
        loop.call(loop.watch, self._pipe.sock, events, self._ready)
        if self._due:
            loop.call(self._go_on, loop)

    def _soon(self, event: int) -> None:
        """Go on in the loop's next turn, when the others have had theirs; once, however often it is asked for."""
        if not self._due:
            self._loop.call(self._go_on, self._loop)
        self._due |= event

    def _go_on(self, loop: Loop) -> None:
        if loop is self._loop and not self._gone:  # it has not moved meanwhile
            events, self._due = self._due, 0
            if events & WRITE:
                self._ready(0)
            if events & READ and not self._gone:
                self._ready(READ)

    def _ready(self, mask: int) -> None:
        if mask & READ & ~self._due:
            self._guarded(self._discard if self._closing else self._receive)
        if self._gone:
            return
        if mask & WRITE:
            self._watch(READ)
        if mask & READ and self._loop.called:  # maybe by who has an answer to what came
            self._soon(WRITE)
            return
        self._guarded(self._send)
        if self._closing and not self._gone:
            self._guarded(self._part)

    def _receive(self) -> None:
        begin = now = time.thread_time()  # what it costs, and not what else the machine has to do meanwhile
        for _ in range(_READS):
            n = self._pipe.recv_into(self.connection.buffer()[: self._appetite.most])
            if n == 0:
                raise ConnectionResetError("the peer hung up")
            self._heard = True
            if events := self.connection.received(n, time.monotonic()):
                self._owner.deliver(self, events)
            if self._closing or not self._pipe.more:
                return
            before, now = now, time.thread_time()
            self._appetite.took(n, now - before)
            if now - begin > self._appetite.turn:
                break
        self._soon(READ)

    def _send(self) -> None:
        pipe, enough = self._pipe, False
        last = False  # what is unsent is all that the connection has; not what was left before: since then more may be
        for _ in range(_WRITES):
            if enough or not pipe.push():
                break
            if not self._unsent:
                last = self._fill() < self._pace.batch
                if not self._unsent:
                    return self._pace.drained()
            sent = pipe.send(self._unsent)
            if sent == 0:
                break
            self._unsent = _skip(self._unsent, sent)
            enough = sent >= self._pace.batch and self._enough_queued()
            self._pace.sent(sent)
            if last and not self._unsent and not pipe.blocked:
                return self._pace.drained()
        else:
            self._soon(WRITE)
        if pipe.blocked or enough:
            self._watch(READ | WRITE)
            self._pace.full(time.monotonic())
            self._limit_queue()
        return None

    def _fill(self) -> int:
        """Ask the connection for a batch; return its bytes."""
        self._kept = False
        self._unsent = _join(self.connection.to_send(self._pace.batch, time.monotonic()), self._merge)
        return sum([len(buffer) for buffer in self._unsent])

    def _enough_queued(self) -> bool:
        """Whether a batch or more waits in the system, which keeps its own limit roughly: give or take some 64 KiB."""
        return self._pace.batch < MOST and _unsent_bytes(self._pipe.sock) >= self._pace.batch

    def _limit_queue(self) -> None:
        """Let no more wait in the system than one batch: more would only be late."""
        limit = self._pace.batch
        if not limit // 2 < self._limit < limit * 2 and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            self._limit = limit
            self._pipe.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limit)

    def _given_up(self) -> bool:
        """Whether the connection ended without a word of either side: nobody has heard anything for too long."""
        connection = self.connection
        if connection.session is None:
            return False
        if connection.state is State.OPENING or not self._heard:
            return True  # maybe not even TLS was up
        if not connection.closed:
            return False
        words = connection.to_send(self._pace.batch, time.monotonic())
        self._unsent += _join(words, self._merge)
        return not words and not connection.session.peer_closed

    def _reset(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._go()

    def _part(self) -> None:
        if not self._unsent and not self._pipe.blocked:
            self._pipe.finish()

    def _discard(self) -> None:
        for _ in range(_READS):
            if not self._pipe.sock.recv(65536):
                return self._go()
        return None

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step; a broken socket is the end of the link."""
        try:
            step()
        except BlockingIOError:
            pass
        except (OSError, SecurityError) as error:
            self._broken(error)

    def _broken(self, error: Exception) -> None:
        if self._gone:
            return
        with contextlib.suppress(OSError, SecurityError):
            self._pipe.push()  # the alert that tells the peer why
        self._go()
        if not self._closing:
            self._owner.lost(self, error)

    def _go(self) -> None:
        if not self._gone:
            self._gone = True
            if self._parting is not None:
                self._parting.cancel()
            self._loop.forget(self._pipe.sock)
            self._pipe.sock.close()

    def _watch(self, events: int) -> None:
        if events != self._interest:
            self._interest = events
            self._loop.watch(self._pipe.sock, events, self._ready)


def _unsent_bytes(sock: socket.socket) -> int:
    """Return what the socket has taken and not sent once; 0 where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return 0
    return int.from_bytes(fcntl.ioctl(sock.fileno(), _SIOCOUTQNSD, bytes(4)), sys.byteorder)


def _join(buffers: list[Buffer], merge: bool) -> list[memoryview]:
    """One buffer of many small ones; the caller's own where they are large."""
    if merge and len(buffers) > 1 and sum([len(buffer) for buffer in buffers]) <= _SMALL:
        return [memoryview(b"".join(buffers))]
    return [memoryview(buffer) for buffer in buffers if len(buffer)]


def _skip(buffers: list[memoryview], n: int) -> list[memoryview]:
    """What is left when the first n bytes are gone."""
    for i, buffer in enumerate(buffers):
        if n < len(buffer):
            return [buffer[n:], *buffers[i + 1 :]]
        n -= len(buffer)
    return []
