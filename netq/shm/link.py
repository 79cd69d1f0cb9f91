"""A link over shared memory: two rings, a control socket, and the Connection whose bytes they carry.

    flush ──► Sender.push ──► ring ──► the peer's Receiver ──► its connection          small parts
                  └── ANNOUNCE ──► GRANT ──► pwritev into its segment ──► WROTE ──►     direct transfer of large bodies

A woken link reads its ring until it is empty; then it sleeps, and the peer sends WAKE when it writes again. Owned by a
loop; never waits. Where it is `inline`, a user's thread that holds the loop's baton calls `flush` and `receive` too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

from netq.errors import ProtocolError
from netq.io.baton import Worker
from netq.io.loop import Loop
from netq.io.receive_size import TURN_BUDGET, ReceiveSize
from netq.io.selector import READ, WRITE
from netq.io.timers import Timer
from netq.runtime.link import LinkListener, fail
from netq.shm.control import NUMBER, REFUSED, SEGMENT, WAKE, ControlSocket, Packet, RingPair
from netq.shm.descriptors import Descriptors
from netq.shm.receiver import Receiver
from netq.shm.records import Kind, Record
from netq.shm.ring import RingError
from netq.shm.segments import Pool, Segments
from netq.shm.sender import Sender
from netq.text import printable

_READS, _WRITES = 64, 8  # steps of receiving and of sending in one turn, so that the other links have theirs
_IDLE_TIME = 10.0  # seconds after which idle segments are freed
_CLOSE_TIMEOUT = 1.0  # seconds to wait for a peer that does not read the last bytes


class Link:
    """Moves bytes between two rings and a connection."""

    def __init__(
        self, listener: LinkListener, loop: Loop, control: ControlSocket, rings: RingPair, pool: Pool, address: str
    ) -> None:
        # The two sides that the link joins: its owner, and the protocol.
        self.connection = listener.connect()
        self.address = address
        self.peer: Worker | None = None
        self._listener = listener
        # Threads: which of them may work on the link.
        self._loop = loop
        self._baton = loop.baton
        self.protection = None  # nothing leaves the machine
        self.inline = True  # False while something waits for room in the ring
        self.awake = True  # this side looks into the ring, so the peer need not send WAKE
        # What carries the bytes: the control socket, the rings, and segments for large messages.
        self._control = control
        self._rings = rings
        self._writer, self._reader = rings.writer, rings.reader
        self._segments = Segments(self.connection, pool, control, self._on_release)
        self._descriptors = Descriptors(self._read_packet)
        self.look = self._reader.has_data
        self._receiver = Receiver(self._reader, self.connection, self._segments, partial(listener.deliver, self))
        self._sender = Sender(
            self._writer, lambda limit: self.connection.to_send(limit, time.monotonic()), self._descriptors
        )
        # Turns of the loop, and the end of the link.
        self._receive_size = ReceiveSize()
        self._scheduled = 0  # events for which `_run_scheduled` is in the loop's queue
        self._age_timer: Timer | None = None
        self._closing = self._ended = self._hung_up = False
        self._close_timer: Timer | None = None
        self._start(loop)

    def flush(self) -> None:
        """Send until there is nothing to send, or the ring is full."""
        if self._ended:
            return
        try:
            if self._closing or not self._sender.push_small():
                self._send()
            elif self._writer.claim_wakeup():
                self._control.wake_peer()
        except (OSError, ProtocolError, RingError) as error:
            fail(self._loop, self._lose, error)

    def receive(self) -> bool:
        """Receive small messages and ACKs in a user's thread; return False if the loop's thread has to continue."""
        if self.peer is None:
            return False
        # As in netq/tcp/link.py: `working_on` is set while the link is in the middle of a step.
        self._baton.working_on = self.peer
        done = self._receive_small(self.peer)
        self._baton.working_on = None
        return done

    def _receive_small(self, peer: Worker) -> bool:
        # What waits for the loop's thread comes first. The ring is awake while this thread looks into it, so the peer
        # sends no WAKE.
        if self._closing or self._ended or self._scheduled or self.connection.buffer_for_small() is None:
            return False
        self.awake = True
        self._reader.wake()
        try:
            if not self._receiver.take_small():
                self._schedule(READ)
            elif self._reader.claim_wakeup():
                self._control.wake_peer()
        except (OSError, ProtocolError, RingError) as error:
            fail(self._loop, self._lose, error)
        session = self.connection.session
        if session is not None and (session.owed or session.ready):
            self._baton.flush_later(peer)
        return not self._scheduled

    def woken(self) -> bool:
        """Take a WAKE from the socket, and receive; for a user's thread that polls."""
        if self.peer is None:
            return False
        # `working_on` is set before the WAKE is taken, because there will be no other: after an exception of a signal
        # handler the loop's thread replaces the link.
        self._baton.working_on = self.peer
        done = self._control.take_wake() and self._receive_woken(self.peer)
        self._baton.working_on = None
        return done

    def _receive_woken(self, peer: Worker) -> bool:
        # The peer sends WAKE for two reasons: it has written, or it has made room in a ring that was full. What waits
        # for room is sent by the loop's thread.
        done = not self._sender.blocked and self._receive_small(peer)
        if not done:
            self.go_on()
        return done

    def sleep(self) -> bool:
        """Have the peer send WAKE when it writes; return False if there are bytes already."""
        # Not while a turn is scheduled: it looks into the ring anyway, and a WAKE would cost both sides a system call.
        if not self._ended and not self._scheduled:
            self.awake = not self._reader.sleep()
        return not self.awake

    def go_on(self) -> None:
        """Look into the ring in the loop's next turn."""
        if not self._ended:
            self._schedule(READ)

    def keep(self) -> None:
        """Replace what is unsent, one batch at most, by copies."""
        self._sender.keep()

    def close(self) -> None:
        """Send the connection's last bytes, then end. The peer reads what is in the ring before it ends, too."""
        if self._closing or self._ended:
            return
        self._closing = self._receiver.discarding = True
        self._close_timer = self._loop.at(time.monotonic() + _CLOSE_TIMEOUT, self._end)
        self.flush()

    def move(self, loop: Loop) -> None:
        """Continue in another loop."""
        self._loop.forget(self._control.sock)
        self._loop.remove_ring(self)
        self._loop = loop
        self._baton = loop.baton
        loop.call(self._start, loop)

    def _start(self, loop: Loop) -> None:
        """Begin in a loop. Bytes may have arrived before, so look into the ring."""
        # The old loop may still have a call of `_run_scheduled`, which does nothing there any more. So the events that
        # it was for are dropped, and one turn here does the work of both.
        if not self._ended:
            self._scheduled = 0
            loop.watch(self._control.sock, READ, self._ready, self.woken)
            loop.add_ring(self)
            self._schedule(READ)

    def _schedule(self, event: int) -> None:
        """Continue in the loop's next turn, after the other links. Several calls before that are one."""
        if not self._scheduled:
            self._loop.call(self._run_scheduled, self._loop)
        self._scheduled |= event

    def _run_scheduled(self, loop: Loop) -> None:
        if loop is not self._loop:  # the link moved to another loop meanwhile
            return
        # Cleared first: a step that is interrupted by its budget schedules the next turn.
        events, self._scheduled = self._scheduled, 0
        if events & WRITE:
            self.flush()
        if events & READ:
            self._guarded(self._run_turn)

    def _ready(self, mask: int) -> None:
        # A packet is mostly a WAKE: the bytes that it announces are in the ring. The end of the socket comes here, too,
        # and is only noted: the peer's last bytes may still be in the ring (`_run_turn`).
        self._guarded(self._read_packet)
        if not self._scheduled & READ:
            self._guarded(self._run_turn)

    def _read_packet(self) -> bool:
        """Handle one packet; return False if there is none. Nearly always there is just one."""
        try:
            packet = self._control.receive()
        except BlockingIOError:
            return False
        except ConnectionError:  # the peer ended without reading our packets; its last bytes are in the ring
            packet = None
        if packet is None:
            self._hung_up = True
        else:
            self._handle_packet(packet)
        return packet is not None

    def _handle_packet(self, packet: Packet) -> None:
        kind, body, fd = packet
        if kind == SEGMENT and len(body) == NUMBER.size:
            self._descriptors.add(NUMBER.unpack(body)[0], fd)
            return
        if fd is not None:
            os.close(fd)
        if kind == REFUSED and self._rings.is_client:
            raise ConnectionRefusedError(f"the peer refuses: {printable(body.decode(errors='replace'))}")
        if kind != WAKE:
            raise ProtocolError(f"a packet of kind {kind} and {len(body)} bytes")

    def _run_turn(self) -> None:
        """Receive, send, and sleep if the ring is empty."""
        self.awake = True
        self._reader.wake()
        self._receive()
        if self._baton.reply_expected and self.peer is not None and self._sender.empty and not self._ended:
            self._baton.flush_later_from_loop(self.peer)  # the reply will carry the ACK; a record is not to wait
        elif not self._ended:
            self._send()
        if self._ended:
            return
        # Sleep comes last. If bytes arrived after `_receive`, it fails and there is another turn, so no wakeup is lost.
        # And only a link that could sleep has read everything: the end of the socket counts from here on, because the
        # peer's last bytes are in the ring.
        self.awake = not self._reader.sleep()
        if self.awake:
            self._schedule(READ)
        elif self._hung_up:
            raise ConnectionResetError("the peer hung up")

    def _receive(self) -> None:
        # A step moves bytes of the present DATA or handles the next record. The turn ends when the ring is empty or its
        # budget is spent. The budget is processor time, so that other processes do not shrink the reads.
        begin = now = time.thread_time()
        for _ in range(_READS):
            if self._ended:
                return
            n = self._receiver.take(self._receive_size.size)
            if not n:
                record = self._receiver.next_record()
                if record is None:
                    break
                self._handle_record(record)
            before, now = now, time.thread_time()
            if n:
                self._receive_size.record(n, now - before)
            if now - begin > self._receive_size.turn_budget:
                break
        self._wake_peer_if_asleep()

    def _handle_record(self, record: Record) -> None:
        match record.kind:
            case Kind.DATA:
                pass  # the next `take` moves its bytes
            case Kind.ANNOUNCE:
                if not self._closing:  # a link that is closing receives nothing more
                    reply = self._receiver.answer(record)
                    self._sender.queue(reply)
                    if reply.kind == Kind.GRANT and self._age_timer is None:
                        self._schedule_aging()
            case Kind.GRANT:
                self._sender.granted(record)
            case Kind.INLINE:
                self._sender.declined()
            case Kind.WROTE:
                self._receiver.wrote(record)
            case Kind.STOPPED:
                self._receiver.stopped()
            case Kind.RELEASE:
                self._sender.released(record.segment)
            case _:
                raise ProtocolError(f"a record of kind {record.kind}")

    def _schedule_aging(self) -> None:
        """Check for idle segments later. A link with segments has a session, so it does not move to another loop."""
        self._age_timer = self._loop.at(time.monotonic() + _IDLE_TIME, self._age)

    def _age(self) -> None:
        """Free segments that no message has needed for a while."""
        self._age_timer = None
        if self._segments.age():
            self._schedule_aging()

    def _send(self) -> None:
        until = time.thread_time() + TURN_BUDGET
        for _ in range(_WRITES):
            more = self._sender.push()
            if not more or time.thread_time() > until:
                break
        if more:
            self._schedule(WRITE)
        self._wake_peer_if_asleep()
        self.inline = self._sender.empty
        # The ring was full. If the peer has made room since, no wake-up will come for that room: go on by ourselves.
        if self._sender.blocked and not self._writer.sleep():
            self._schedule(WRITE)
        if self._closing and self._sender.empty:
            self._end()

    def _wake_peer_if_asleep(self) -> None:
        if self._writer.claim_wakeup() | self._reader.claim_wakeup():
            self._control.wake_peer()

    def _on_release(self, number: int) -> None:
        """Report a freed segment to the peer. Called in any thread: that in which the last view was freed."""
        # The user's thread frees it with the last array, perhaps within the garbage collector and on top of any code.
        # So this only adds a call to the loop's queue.
        self._loop.call(self._queue_release, number)

    def _queue_release(self, number: int) -> None:
        self._guarded(lambda: self._sender.queue(Record(Kind.RELEASE, number)))
        self.flush()

    def _guarded(self, step: Callable[[], object]) -> None:
        """Run a step, unless the link has ended; an error ends it."""
        if self._ended:
            return
        try:
            step()
        except (OSError, ProtocolError, RingError) as error:
            fail(self._loop, self._lose, error)

    def _lose(self, error: Exception) -> None:
        if not self._ended:
            self._end()
            if not self._closing:
                self._listener.lost(self, error)

    def _end(self) -> None:
        if self._ended:
            return
        # In this order: the sender and the receiver release views of the rings and segments before these are closed.
        self._ended = True
        for timer in (self._close_timer, self._age_timer):
            if timer is not None:
                timer.cancel()
        self._sender.clear()
        self._receiver.clear()
        self._loop.forget(self._control.sock)
        self._loop.remove_ring(self)
        self._control.sock.close()
        self._segments.end()
        self._loop.call(self._rings.close)  # later: the step that has led here may still use the ring
