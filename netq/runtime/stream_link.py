"""A link over a byte stream: moves the bytes of one Connection. The stream is TCP, TLS, or two rings of shared memory.

Owned by a loop; it never waits and never retries. A user's thread that holds the loop's baton sends and receives as the
loop's thread does, messages of every size. What only the loop's thread may do it leaves to that: a handshake, the
events of a connection, errors, the end of the link. What differs between the streams, such as the events that the loop
watches, is theirs (ByteStream in netq/io/sockets.py).

    connection.to_send ──► _unsent ──► stream.send ──► the socket's queue, or the ring ──► peer
    peer ──► stream.recv_into ──► connection.buffer ──► connection.received ──► listener.deliver
"""

from __future__ import annotations

import contextlib
import threading
import time

from netq.identity import Protection
from netq.io.baton import Worker
from netq.io.loop import Loop
from netq.io.receive_size import ReceiveSize
from netq.io.selector import READ, WRITE
from netq.io.sockets import BROKEN, ByteStream
from netq.io.timers import Timer
from netq.protocol.connection import Connection, State
from netq.protocol.events import Event
from netq.runtime.link import LinkListener, fail
from netq.runtime.send_batch import MAX_BATCH, SendBatch

_SMALL = 68 * 1024  # bytes: up to here, a small message and ACKs, one copy costs less than a vector of buffers
_READS = 64  # reads in one turn, at most: the bound where the clock of processor time is coarse
_WRITES = 4  # batches in one turn, so that the other links of the loop have theirs
_INLINE_WRITES = 64  # batches of a user's thread in one call, after which the loop's thread goes on
_CLOSE_TIMEOUT = 1.0  # seconds to wait for the peer's end of the connection after ours


class Link:
    """Moves bytes between a connected stream and a connection.

    It has more attributes than others: to send, to receive and to end share the stream, and each event reads all three.
    """

    def __init__(
        self, listener: LinkListener, loop: Loop, stream: ByteStream, connection: Connection, address: str
    ) -> None:
        # The two sides that the link joins: its owner, and the protocol.
        self.connection = connection
        self.address = address
        self.peer: Worker | None = None
        self._listener = listener
        # Threads and events: which threads may work on the link, and what the loop watches for it.
        self._loop = loop
        self._baton = loop.baton
        self.inline = True
        self._interest = 0
        self._scheduled = 0  # events for which `_run_scheduled` is in the loop's queue
        # Sending.
        self._stream = stream
        self._merge = listener.options.connection.put_merge
        self._unsent: list[memoryview] = []
        self._copied = False  # `_unsent` is a copy: the user may change the original
        self._batch = SendBatch()
        # Receiving.
        self._receive_size = ReceiveSize()
        self._received_any = False  # whether the connection has had any bytes: with TLS, the handshake is over
        self._events: list[Event] = []  # that a user's thread has left to the loop's thread
        # The end of the link.
        self._closing = self._ended = False  # `close` was called; the stream is closed
        self._close_timer: Timer | None = None
        stream.bound_queue(self._batch.size)
        self._watch(READ)

    @property
    def protection(self) -> Protection | None:
        """What TLS has negotiated."""
        return self._stream.protection

    def flush(self) -> None:
        """Send until there is nothing to send, or the socket is full."""
        if not self._ended and not self._interest & WRITE:
            try:
                self._send(_WRITES if threading.get_ident() == self._baton.thread else _INLINE_WRITES)
            except BROKEN as error:
                self._fail(error)

    def receive(self) -> None:
        """Receive what has come, without sending: see `Peer._exchange`."""
        if self.peer is not None and not (self._ended or self._closing or self._scheduled):
            try:
                self._receive(self._loop.is_own)
            except BROKEN as error:
                self._fail(error)

    def keep(self) -> None:
        """Replace what is unsent, one batch at most, by a copy."""
        if not self._copied:
            self._unsent = [memoryview(bytes(buffer)) for buffer in self._unsent]
            self._copied = True

    def close(self) -> None:
        """Send the connection's last bytes, then end in order: a reset could make the peer lose them.

        A link is reset instead if the peer did not answer, or there is no room for it. Otherwise the system would go on
        sending for minutes, and an INI that arrives so late looks like a newer link than the one that is in use then.
        """
        # The socket is not closed before the peer has closed its side, or a second is over. Closing a socket with
        # unread bytes sends a reset, and the peer's system then discards what its process has not read: our last frame,
        # with the reason for the end. So `_discard` reads on meanwhile.
        if self._closing or self._ended:
            return
        self._closing = True
        if self._is_abandoned():
            self._reset()
        else:
            self._close_timer = self._loop.at(time.monotonic() + _CLOSE_TIMEOUT, self._end)
            self.flush()
            try:
                self._finish()
            except BROKEN as error:
                self._fail(error)

    def move(self, loop: Loop) -> None:
        """Continue in another loop."""
        # The new loop watches the socket only in its own thread, after what was called there before. A call that is
        # still queued in the old loop finds that the link has left (`_run_scheduled`), so this queues another.
        self._stream.forget()
        self._loop, self._baton, events = loop, loop.baton, self._interest
        loop.call(self._stream.watch, loop, events, self._ready)
        if self._scheduled:
            loop.call(self._run_scheduled, loop)

    def _schedule(self, event: int) -> None:
        """Continue in the loop's next turn, after the other links. Several calls before that are one."""
        if not self._scheduled:
            self._loop.call(self._run_scheduled, self._loop)
        self._scheduled |= event

    def _run_scheduled(self, loop: Loop) -> None:
        if loop is self._loop and not self._ended:  # else it moved to another loop meanwhile
            events, self._scheduled = self._scheduled, 0
            if self._events:
                found, self._events = self._events, []
                self._listener.deliver(self, found)
            if events & WRITE:
                self._ready(0)
            if events & READ and not self._ended:
                self._ready(READ)

    def _ready(self, mask: int) -> None:
        # With READ scheduled, this link has had its turn of receiving and continues behind the other links. The
        # selector reports it all the same, and reading now would give it two turns for each one of theirs.
        baton = self._baton
        is_own = threading.get_ident() == baton.thread
        if not is_own and (self._scheduled or self._closing or self.peer is None or not self.connection.open):
            baton.hand_over()
            return
        try:
            if mask & READ & ~self._scheduled:
                if self._closing:
                    self._discard()
                else:
                    self._receive(is_own)
            if self._ended:
                return
            if mask & WRITE:
                self._watch(READ)
                # With many links the loop comes late: the socket has run empty meanwhile, and to count that time would
                # take this loop for the link, and lead to the smallest batches.
                if self._stream.ran_empty():
                    self._batch.drained()
            elif mask and self.peer is not None and (baton.reply_expected if is_own else not self._scheduled):
                # The ACK travels with the user's answer, which often follows. Otherwise it leaves when this thread
                # waits again, or soon. TLS may have bytes of its own to send, too.
                if self.connection.owes or self._unsent or self._stream.hides:
                    baton.flush_with_next(self.peer)
                return
            self._send(_WRITES if is_own else _INLINE_WRITES)
            if self._closing and not self._ended:
                self._finish()
        except BROKEN as error:
            self._fail(error)

    def _receive(self, is_own: bool) -> None:
        # Read until the socket is empty or the turn's budget is spent. The budget is processor time, not wall time, so
        # that other processes on a busy machine do not shrink the reads. The first read of a turn is not measured: for
        # most messages it is the only one, and the clock costs as much as parsing a small frame.
        stream, connection = self._stream, self.connection
        begin = now = 0.0
        for _ in range(_READS):
            buffer, most = connection.buffer(), self._receive_size.size
            try:
                if len(buffer) <= most:
                    n = stream.recv_into(buffer, connection.ahead()[: most - len(buffer)])
                else:
                    n = stream.recv_into(buffer[:most])
            except BlockingIOError:
                return
            if n == 0:
                raise ConnectionResetError("the peer hung up" if self._received_any else self._stream.unanswered)
            self._received_any = True
            if events := connection.received(n, time.monotonic()):
                if not is_own:
                    self._events = events  # they are for the loop's thread, and so is all that follows
                    self._schedule(READ)
                    return
                self._listener.deliver(self, events)
            if self._closing or not stream.more:
                return
            if not begin:
                begin = now = time.thread_time()
                continue
            before, now = now, time.thread_time()
            self._receive_size.record(n, now - before)
            if now - begin > self._receive_size.turn_budget:
                break
        # A user's thread leaves what is still in the socket to the selector, which does not see bytes in a TLS layer.
        if stream.hides or is_own:
            self._schedule(READ)

    def _send(self, most: int) -> None:
        """Send `most` batches, or fewer if there is nothing to send or the socket is full."""
        stream, batch, enough = self._stream, self._batch, False
        size = 0  # bytes of the batch taken in this call; 0 while sending what was left from an earlier call
        last = False  # this batch is all that the connection has
        # Take a batch from the session, hand it to the socket, and repeat. Stop when the session has no more, the share
        # of the turn is used, or the socket is full: it did not take all (`blocked`) or a batch waits in it (`enough`).
        # A full socket starts or ends a measurement of the link's rate (netq/runtime/send_batch.py).
        for _ in range(most):
            if enough or ((stream.blocked or stream.hides) and not stream.push()):
                break
            if not self._unsent:
                buffers = self.connection.to_send(batch.size, time.monotonic())
                size = sum(map(len, buffers))
                if not size:
                    return batch.drained()
                last = size < batch.size
                self._copied = False
                if self._merge and size <= _SMALL:
                    self._unsent = [memoryview(b"".join(buffers))]
                else:
                    self._unsent = [memoryview(buffer) for buffer in buffers if len(buffer)]
            sent = stream.send(self._unsent)
            if sent == 0:
                break
            self._unsent = [] if sent == size else _skip(self._unsent, sent)
            if sent >= batch.size:
                enough = self._has_enough_queued()
            if batch.full_since is not None or sent >= batch.size:
                batch.sent(sent)
            if last and not self._unsent and not stream.blocked:
                return batch.drained() if batch.full_since is not None else None
        else:
            self._schedule(WRITE)
        if stream.blocked or enough:
            self._watch(READ | WRITE)
            batch.full(time.monotonic())
            stream.bound_queue(batch.size)
        return None

    def _has_enough_queued(self) -> bool:
        """Whether a batch or more waits in the socket. The system keeps TCP_NOTSENT_LOWAT only within some 64 KiB."""
        return self._batch.size < MAX_BATCH and self._stream.queued() >= self._batch.size

    def _is_abandoned(self) -> bool:
        """Whether the connection ended by silence: neither side said why, so the peer may not be there."""
        # The bytes that the connection still has to send show the case: after a refusal, a FIN or an error there
        # is a last frame for the peer. There is none if the heartbeat or the handshake has timed out, or if a server
        # has too many links in their handshake: then it must not wait for the peer, either.
        connection = self.connection
        session = connection.session
        if session is not None and (connection.state is State.OPENING or not self._received_any):
            return True  # no handshake, perhaps not even that of TLS
        if not connection.closed:
            return False
        last = connection.to_send(self._batch.size, time.monotonic())
        self._unsent += map(memoryview, last)
        return not last and not (session is not None and session.peer_closed)

    def _reset(self) -> None:
        self._stream.reset()
        self._end()

    def _finish(self) -> None:
        if not self._unsent and not self._stream.blocked:
            self._stream.finish()

    def _discard(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_READS):
                if not self._stream.discard():
                    return self._end()
        return None

    def _fail(self, error: Exception) -> None:
        """End the link: its socket or its TLS is broken."""
        fail(self._loop, self._lose, error)
        if not self._loop.is_own:
            self._baton.hand_over()  # or this thread would find the same error until the loop's thread has run

    def _lose(self, error: Exception) -> None:
        if self._ended:
            return
        with contextlib.suppress(*BROKEN):
            self._stream.push()  # the TLS alert with the reason
        self._end()
        if not self._closing:
            self._listener.lost(self, error)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            if self._close_timer is not None:
                self._close_timer.cancel()
            self._stream.close()

    def _watch(self, events: int) -> None:
        # While the socket is full, the thread that polls watches for WRITE, and `flush` does nothing until then.
        if events != self._interest:
            self._interest = events
            self._stream.watch(self._loop, events, self._ready)


def _skip(buffers: list[memoryview], n: int) -> list[memoryview]:
    """Return the buffers without their first n bytes."""
    if len(buffers) == 1 and n == len(buffers[0]):
        return []
    for i, buffer in enumerate(buffers):
        if n < len(buffer):
            return [buffer[n:], *buffers[i + 1 :]]
        n -= len(buffer)
    return []
