"""Two rings, the socket that rings their bells, and the Connection whose bytes they carry. In a loop; never waits.

    flush ──► Sender.push ──► ring ──► the peer's Receiver ──► its connection          what is small
                  └── ANNOUNCE ──► GRANT ──► pwritev into its segment ──► WROTE ──►     what is large

A link looks into its rings when the peer rings the bell, until it finds nothing; then it says that it sleeps.
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
from netq.io.signal_handlers import raised_by_handler
from netq.io.timers import Timer
from netq.runtime.link import LinkListener
from netq.shm.control import BELL, NUMBER, REFUSED, SEGMENT, Channel, ControlSocket, Packet
from netq.shm.descriptors import Descriptors
from netq.shm.receiver import Receiver
from netq.shm.records import Kind, Record
from netq.shm.ring import RingError
from netq.shm.segments import Pool, Segments
from netq.shm.sender import Sender
from netq.text import printable

_READS, _WRITES = 64, 8  # steps of taking, and of sending, before the others have their turn
_AGE = 10.0  # seconds after which memory that nobody uses is given back
_PARTING = 1.0  # seconds to wait for a peer that does not take the rest


class Link:
    """Moves bytes between two rings and a connection."""

    def __init__(
        self, listener: LinkListener, loop: Loop, control: ControlSocket, channel: Channel, pool: Pool, address: str
    ) -> None:
        self.connection = listener.connect()
        self.address = address
        self.awake = True  # the peer need not ring the bell
        self.peer: Worker | None = None
        self.inline = True  # but while the ring has no room
        self._listener = listener
        self._loop = loop
        self._baton = loop.baton
        self._control = control
        self._channel = channel
        self._writer, self._reader = channel.writer, channel.reader
        self._segments = Segments(self.connection, pool, control, self._released)
        self._files = Descriptors(self._listen)
        self.look = self._reader.waits
        self._in = Receiver(self._reader, self.connection, self._segments, partial(listener.deliver, self))
        self._out = Sender(self._writer, lambda limit: self.connection.to_send(limit, time.monotonic()), self._files)
        self._receive_size = ReceiveSize()
        self._due = 0  # what the loop has been asked to go on with in its next turn
        self._aging: Timer | None = None
        self._closing = self._gone = self._hung_up = False
        self._parting: Timer | None = None
        self._settle(loop)

    def flush(self) -> None:
        """Send until there is nothing to send, or the peer must make room."""
        if self._gone:
            return
        try:
            if self._closing or not self._out.push_small():
                self._send()
            elif self._writer.bell():
                self._control.ring()
        except (OSError, ProtocolError, RingError) as error:
            self._failed(error)

    def receive(self) -> bool:
        """Receive small messages and ACKs, in a user's thread; return False if the loop's thread has to go on."""
        baton, peer = self._baton, self.peer
        if peer is None or self._closing or self._gone or self._due or self.connection.buffer_for_small() is None:
            return False
        baton.working_on = peer
        self.awake = True
        self._reader.wake()
        try:
            if not self._in.take_small():
                self._soon(READ)
            elif self._reader.bell():
                self._control.ring()
        except (OSError, ProtocolError, RingError) as error:
            self._failed(error)
        session = self.connection.session
        if session is not None and (session.owed or session.ready):
            baton.flush_later(peer)
        baton.working_on = None
        return not self._due

    def heard(self) -> bool:
        """Hear the bell, and receive: for a user's thread that polls."""
        if not self._control.take_bell():
            return False
        done = self.receive()
        if not done:
            self.go_on()  # the bell is not heard again
        return done

    def sleep(self) -> bool:
        """Have the peer ring the bell when something comes; return False if it is there already."""
        if not self._gone and not self._due:
            self.awake = not self._reader.sleep()
        return not self.awake

    def go_on(self) -> None:
        """Look into the ring, in the loop's thread."""
        if not self._gone:
            self._soon(READ)

    def keep(self) -> None:
        """Go on with copies, of one batch at most."""
        self._out.keep()

    def close(self) -> None:
        """Send what the connection has left to say, then end: the peer finds it in the ring."""
        if self._closing or self._gone:
            return
        self._closing = self._in.deaf = True
        self._parting = self._loop.at(time.monotonic() + _PARTING, self._go)
        self.flush()

    def move(self, loop: Loop) -> None:
        """Go on in another loop."""
        self._loop.forget(self._control.sock)
        self._loop.remove_ring(self)
        self._loop = loop
        self._baton = loop.baton
        loop.call(self._settle, loop)

    def _settle(self, loop: Loop) -> None:
        """Begin in a loop: something may have come before."""
        if not self._gone:
            self._due = 0
            loop.watch(self._control.sock, READ, self._rung, self.heard)
            loop.add_ring(self)
            self._soon(READ)

    def _soon(self, event: int) -> None:
        """Go on in the loop's next turn, when the others have had theirs; once, however often it is asked for."""
        if not self._due:
            self._loop.call(self._go_on, self._loop)
        self._due |= event

    def _go_on(self, loop: Loop) -> None:
        if loop is not self._loop:  # it has moved meanwhile
            return
        events, self._due = self._due, 0
        if events & WRITE:
            self.flush()
        if events & READ:
            self._guarded(self._turn)

    def _rung(self, mask: int) -> None:
        self._guarded(self._listen)
        if not self._due & READ:
            self._guarded(self._turn)

    def _listen(self) -> bool:
        """Take one packet, if there is one: nearly always there is just one."""
        try:
            packet = self._control.receive()
        except BlockingIOError:
            return False
        except ConnectionError:  # it ended without having read ours; what it said before counts all the same
            packet = None
        if packet is None:
            self._hung_up = True
        else:
            self._heard(packet)
        return packet is not None

    def _heard(self, packet: Packet) -> None:
        kind, body, fd = packet
        if kind == SEGMENT and len(body) == NUMBER.size:
            self._files.add(NUMBER.unpack(body)[0], fd)
            return
        if fd is not None:
            os.close(fd)
        if kind == REFUSED and self._channel.brought:
            raise ConnectionRefusedError(f"the peer refuses: {printable(body.decode(errors='replace'))}")
        if kind != BELL:
            raise ProtocolError(f"a packet of kind {kind} and {len(body)} bytes")

    def _turn(self) -> None:
        """Take what is there, send what is due, and sleep when there is nothing more."""
        self.awake = True
        self._reader.wake()
        self._receive()
        if self._baton.reply_expected and self.peer is not None and not self._gone:
            self._baton.flush_later_from_loop(self.peer)  # the answer takes our ACK along
        elif not self._gone:
            self._send()
        if self._gone:
            return
        self.awake = not self._reader.sleep()
        if self.awake:
            self._soon(READ)
        elif self._hung_up:
            raise ConnectionResetError("the peer hung up")

    def _receive(self) -> None:
        begin = now = time.thread_time()  # what it costs, and not what else the machine has to do meanwhile
        for _ in range(_READS):
            if self._gone:
                return
            n = self._in.take(self._receive_size.size)
            if not n:
                said = self._in.next()
                if said is None:
                    break
                self._do(said)
            before, now = now, time.thread_time()
            if n:
                self._receive_size.record(n, now - before)
            if now - begin > self._receive_size.turn_budget:
                break
        self._wake_peer()

    def _do(self, said: Record) -> None:
        match said.kind:
            case Kind.DATA:
                pass  # its bytes are taken next
            case Kind.ANNOUNCE:
                if not self._closing:  # a link that is about to end asks for no more
                    answer = self._in.offer(said)
                    self._out.say(answer)
                    if answer.kind == Kind.GRANT and self._aging is None:
                        self._age_later()
            case Kind.GRANT:
                self._out.granted(said)
            case Kind.INLINE:
                self._out.inline()
            case Kind.WROTE:
                self._in.wrote(said)
            case Kind.STOPPED:
                self._in.stopped()
            case Kind.RELEASE:
                self._out.released(said.segment)
            case _:
                raise ProtocolError(f"a record of kind {said.kind}")

    def _age_later(self) -> None:
        """There are segments, so the link has moved to its loop for good: a stranger's link has none."""
        self._aging = self._loop.at(time.monotonic() + _AGE, self._age)

    def _age(self) -> None:
        """Give segments back that no message has needed for a while."""
        self._aging = None
        if self._segments.age():
            self._age_later()

    def _send(self) -> None:
        until = time.thread_time() + TURN_BUDGET
        for _ in range(_WRITES):
            more = self._out.push()
            if not more or time.thread_time() > until:
                break
        if more:
            self._soon(WRITE)
        self._wake_peer()
        self.inline = self._out.empty
        if self._out.blocked and not self._writer.sleep():
            self._soon(WRITE)
        if self._closing and self._out.empty:
            self._go()

    def _wake_peer(self) -> None:
        if self._writer.bell() | self._reader.bell():
            self._control.ring()

    def _released(self, number: int) -> None:
        """A segment is gone, in whatever thread its last view died."""
        self._loop.call(self._release, number)

    def _release(self, number: int) -> None:
        self._guarded(lambda: self._out.say(Record(Kind.RELEASE, number)))
        self.flush()

    def _guarded(self, step: Callable[[], object]) -> None:
        """Run a step, unless the link is gone; what goes wrong is its end."""
        if self._gone:
            return
        try:
            step()
        except (OSError, ProtocolError, RingError) as error:
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
        if not self._gone:
            self._go()
            if not self._closing:
                self._listener.lost(self, error)

    def _go(self) -> None:
        if self._gone:
            return
        self._gone = True
        for timer in (self._parting, self._aging):
            if timer is not None:
                timer.cancel()
        self._out.clear()
        self._in.clear()
        self._loop.forget(self._control.sock)
        self._loop.remove_ring(self)
        self._control.sock.close()
        self._segments.end()
        self._loop.call(self._channel.close)  # not now: the step that has led here may still look into it
