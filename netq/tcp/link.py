"""One socket, and the Connection whose bytes it moves. Lives in a loop; never waits, never retries."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys
import time
from collections.abc import Callable

from netq.errors import SecurityError
from netq.io.loop import Loop, Worker
from netq.io.receive_size import ReceiveSize
from netq.io.selector import READ, WRITE
from netq.io.signal_handlers import raised_by_handler
from netq.io.sockets import ByteStream, tune
from netq.io.timers import Timer
from netq.protocol.connection import Connection, State
from netq.runtime.link import LinkListener
from netq.tcp.send_batch import MOST, SendBatch

_SMALL = 64 * 1024  # bytes up to which joining costs less than a longer vector
_FEW = 4  # times that a user's thread receives at once
_READS = 64  # times that is received in one turn, at most: where the clock of the processor is coarse
_WRITES = 4  # batches sent before the others have their turn
_SIOCOUTQNSD = 0x894B  # linux/sockios.h
_PARTING = 1.0  # seconds to wait for the peer's end after ours
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close throws away what has not arrived, and says RST


class Link:
    """Moves bytes between a connected socket and a connection."""

    def __init__(
        self, listener: LinkListener, loop: Loop, pipe: ByteStream, connection: Connection, address: str
    ) -> None:
        self.connection = connection
        self.address = address
        self.peer: Worker | None = None
        self.inline = True  # but while the socket takes nothing
        self._listener = listener
        self._loop = loop
        self._pipe = pipe
        self._merge = listener.options.connection.put_merge
        self._unsent: list[memoryview] = []
        self._pace = SendBatch()
        self._receive_size = ReceiveSize()
        self._limit = 0  # bytes that may wait in the system
        self._kept = False  # what is unsent is a copy
        self._interest = 0
        self._due = 0  # what the loop has been asked to go on with in its next turn
        self._heard = False  # anything that is for the connection
        self._meagre = False  # what was received last is little
        self._rest = False  # a user's thread has received what the connection has not parsed to the end
        self._closing = self._gone = False
        self._parting: Timer | None = None
        pipe.sock.setblocking(False)
        tune(pipe.sock)
        self._limit_queue()
        self._watch(READ)

    def flush(self) -> None:
        """Send until there is nothing to send, or the socket is full."""
        if not self._gone and not self._interest & WRITE:
            try:
                self._send()
            except BlockingIOError:
                pass
            except (OSError, SecurityError) as error:
                self._failed(error)

    def receive(self) -> bool:
        """Receive small messages and ACKs, in a user's thread; return False if the loop's thread has to go on."""
        connection, loop, pipe, peer = self.connection, self._loop, self._pipe, self.peer
        if peer is None or self._closing or self._gone or self._due or self._rest:
            return False
        loop.working_on = peer
        done, n = True, 0
        try:
            for _ in range(_FEW):
                if (buffer := connection.buffer_for_small()) is None:
                    done = False  # the loop's thread goes on with what has begun
                    break
                n = pipe.recv_into(buffer)
                if not n:
                    done = False  # the end, which the loop's thread will see again
                    break
                self._heard = True
                done = connection.received_small(n, time.monotonic())
                if not (done and pipe.more):
                    break
            if n and (not done or (pipe.more and pipe.hides)):
                self._rest = True
                self._soon(READ)
        except BlockingIOError:
            pass
        except (OSError, SecurityError) as error:
            self._failed(error)
        session = connection.session
        if session is not None and (session.owed or session.ready):
            loop.flush_later(peer)
        loop.working_on = None
        return done

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
        loop.call(loop.watch, self._pipe.sock, events, self._ready, self.receive)
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
        if mask & READ and self.peer is not None and self._meagre and self._loop.reply_expected:
            self._loop.flush_later_from_loop(self.peer)  # the answer takes our ACK along
            return
        self._guarded(self._send)
        if self._closing and not self._gone:
            self._guarded(self._part)

    def _receive(self) -> None:
        if self._rest:
            self._rest = False
            self._take(0)
            if self._closing or self._gone:
                return
        begin = now = 0.0
        for count in range(_READS):
            n = self._pipe.recv_into(self.connection.buffer()[: self._receive_size.size])
            if n == 0:
                raise ConnectionResetError("the peer hung up")
            self._heard = True
            self._meagre = not count and n <= _SMALL
            self._take(n)
            if self._closing or not self._pipe.more:
                return
            if not begin:  # from here on: what it costs, and not what else the machine has to do meanwhile
                begin = now = time.thread_time()
                continue
            before, now = now, time.thread_time()
            self._receive_size.record(n, now - before)
            if now - begin > self._receive_size.turn_budget:
                break
        self._soon(READ)

    def _take(self, n: int) -> None:
        if events := self.connection.received(n, time.monotonic()):
            self._listener.deliver(self, events)

    def _send(self) -> None:
        pipe, pace, enough = self._pipe, self._pace, False
        size = 0  # of the batch that was asked for; not of what was left before
        last = False  # the batch is all that the connection has
        for _ in range(_WRITES):
            if enough or ((pipe.blocked or pipe.hides) and not pipe.push()):
                break
            if not self._unsent:
                buffers = self.connection.to_send(pace.batch, time.monotonic())
                size = sum(map(len, buffers))
                if not size:
                    return pace.drained()
                last = size < pace.batch
                self._kept = False
                if self._merge and size <= _SMALL:  # one short copy costs less than a longer vector
                    self._unsent = [memoryview(b"".join(buffers))]
                else:
                    self._unsent = [memoryview(buffer) for buffer in buffers if len(buffer)]
            sent = pipe.send(self._unsent)
            if sent == 0:
                break
            self._unsent = [] if sent == size else _skip(self._unsent, sent)
            if sent >= pace.batch:
                enough = self._enough_queued()
            if pace.since is not None or sent >= pace.batch:
                pace.sent(sent)
            if last and not self._unsent and not pipe.blocked:
                return pace.drained() if pace.since is not None else None
        else:
            self._soon(WRITE)
        if pipe.blocked or enough:
            self._watch(READ | WRITE)
            pace.full(time.monotonic())
            self._limit_queue()
        return None

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
        self._unsent += map(memoryview, words)
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
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """A step has: the loop's thread deals with it. An exception that a signal handler has raised is not ours."""
        if self._loop.is_own:
            self._broken(error)
        elif raised_by_handler(error) is not None:
            raise error
        else:
            self._loop.call(self._broken, error)

    def _broken(self, error: Exception) -> None:
        if self._gone:
            return
        with contextlib.suppress(OSError, SecurityError):
            self._pipe.push()  # the alert that tells the peer why
        self._go()
        if not self._closing:
            self._listener.lost(self, error)

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
            self.inline = not events & WRITE
            self._loop.watch(self._pipe.sock, events, self._ready, self.receive)


def _unsent_bytes(sock: socket.socket) -> int:
    """Return what the socket has taken and not sent once; 0 where the system does not tell (as qemu's does not)."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), _SIOCOUTQNSD, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def _skip(buffers: list[memoryview], n: int) -> list[memoryview]:
    """What is left when the first n bytes are gone."""
    if len(buffers) == 1 and n == len(buffers[0]):
        return []
    for i, buffer in enumerate(buffers):
        if n < len(buffer):
            return [buffer[n:], *buffers[i + 1 :]]
        n -= len(buffer)
    return []
