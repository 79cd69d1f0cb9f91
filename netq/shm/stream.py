"""A byte stream through two rings of shared memory, for a link. The control socket wakes, and ends the stream.

    send ──► ring ──► the peer's recv_into     WAKE, if the peer sleeps: there are bytes
    recv_into ◄── ring ◄── the peer's send     WAKE, if the peer has found its ring full: there is room

While the stream is `awake` no descriptor tells of its bytes: the threads that poll look into the ring
(netq/io/poller.py). When they stop, they put it to sleep, and the peer sends WAKE with its next bytes. Owned by a link;
never waits. A peer that breaks the rules ends its link, and nothing else.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence

from netq.buffers import NOTHING
from netq.errors import ProtocolError
from netq.io.loop import Loop
from netq.io.poller import Ready
from netq.io.selector import READ, WRITE
from netq.io.spin import spin_seconds
from netq.shm.control import MAX_PACKET, REFUSED, WAKE_PACKET, ControlSocket, RingPair
from netq.shm.ring import RingError
from netq.text import printable

PIECE = 128 * 1024  # bytes copied at once, at most: the peer works on a piece while this side copies the next one
# Seconds for which this side waits, within a large message, for the piece that the peer works on: to return to the loop
# and come back would take as long. It does not wait behind small pieces, of which a peer could send many.
_PATIENCE = spin_seconds(50e-6)
_LARGE = PIECE // 2
_READS = 32  # reads in one call, at most: a peer may write tiny pieces as fast as this side reads them


class RingStream:
    """A ByteStream (netq/io/sockets.py), and the Ring that its loop polls (netq/io/poller.py)."""

    hides = False  # a ring with bytes does not go to sleep
    protection = None  # nothing leaves the machine
    unanswered = "the peer hung up"

    def __init__(self, control: ControlSocket, rings: RingPair) -> None:
        self.sock = control.sock
        self.blocked = self.more = False
        self.awake = True  # this side looks into the ring, so the peer need not send WAKE
        self._control = control
        self._rings = rings
        self._writer, self._reader = rings.writer, rings.reader
        self._piece = min(PIECE, self._writer.size // 4)  # what half of the ring has room for, of any peer's ring
        # What the control socket has brought, for `recv_into`.
        self._hung_up = False  # the peer's last bytes are in the ring
        self._error: Exception | None = None
        # Events.
        self._loop: Loop | None = None  # that watches the stream
        self._ready: Ready
        self._interest = 0  # the events that it is watched for
        self._scheduled = False  # `_run_scheduled` is in the loop's queue

    # For the link: see ByteStream.

    def recv_into(self, buffer: memoryview, ahead: memoryview = NOTHING) -> int:
        """Move bytes out of the ring until it is empty or the buffer is full; what is behind them, into `ahead`."""
        if self._error is not None:
            raise self._error
        reader, size, count, last = self._reader, len(buffer), 0, 0
        # The order matters: the bytes that a peer has written before it hung up are in the ring when that is known.
        self.more = hung_up = self._hung_up
        for _ in range(_READS):
            if not (reader.available() or (last >= _LARGE and size > PIECE and size > count and self._comes())):
                break
            last = reader.read_into(buffer[count : count + PIECE] if count < size else ahead[count - size :])
            count += last
            if reader.claim_wakeup():
                self._control.wake_peer()
            if count == size + len(ahead):
                self.more = True
                return count
        if not count and not hung_up:
            raise BlockingIOError
        return count

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Copy into the ring, piece by piece, until it has no room for the next one."""
        writer, count = self._writer, 0
        for piece in _pieces(buffers, self._piece):
            size = sum(map(len, piece))
            if writer.free() < size and not self._gets_room(size):
                return count
            writer.write(piece)
            count += size
            if writer.claim_wakeup():
                self._control.wake_peer()
        return count

    def push(self) -> bool:
        """Keep nothing; return whether there is room."""
        return not self.blocked or self._has_room()

    def finish(self) -> None:
        """End the stream. The peer still reads what is in its ring; the end of this side's socket is an event."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def discard(self) -> bool:
        """Drop what is in the ring."""
        reader = self._reader
        if count := reader.available():
            reader.skip(count)
            if reader.claim_wakeup():
                self._control.wake_peer()
        elif self._hung_up or self._error is not None:
            return False
        else:
            raise BlockingIOError
        return True

    def watch(self, loop: Loop, events: int, ready: Ready) -> None:
        """Watch the socket for WAKE, whatever the events: it may be for either."""
        self._interest = events
        if self._loop is None and self.sock.fileno() >= 0:
            self._loop, self._ready = loop, ready
            loop.watch(self.sock, READ, self._packet_ready, shared=True)
            loop.add_ring(self)

    def forget(self) -> None:
        """Leave the loop."""
        if self._loop is not None:
            self._loop.forget(self.sock)
            self._loop.remove_ring(self)
            self._loop, self._scheduled = None, False

    def bound_queue(self, size: int) -> None:
        """Bound nothing: the ring has its size."""

    def queued(self) -> int:
        """Return 0: nothing waits in the system."""
        return 0

    def ran_empty(self) -> bool:
        """Return False: what waits is in the ring."""
        return False

    def reset(self) -> None:
        """Do nothing: `close` sends nothing."""

    def close(self) -> None:
        """Close the socket and unmap the rings."""
        self.forget()
        self.sock.close()
        self._rings.close()

    # For the loop: see Ring.

    def look(self) -> bool:
        """Return whether there are bytes, or the room that this side waits for."""
        return self._reader.has_data() or self._room_came

    def receive(self) -> None:
        """Receive, and send what has waited for room; in a user's thread."""
        if self._loop is not None:
            self._wake()
            self._call_ready()

    def sleep(self) -> bool:
        """Have the peer send WAKE with its next bytes; return False if there is something to receive already."""
        if self._loop is None:
            return True
        # Not while a call is scheduled: it looks into the ring, and a WAKE would cost both sides a system call. And not
        # with room that was waited for: the WAKE that told of it has been taken.
        if self._scheduled or self._hung_up or self._error is not None or self._room_came:
            return False
        try:
            self.awake = not self._reader.sleep()
        except RingError as error:
            self._error = error
        return not self.awake

    def go_on(self) -> None:
        """Receive, and send what has waited for room, in the loop's thread."""
        if self._loop is not None and not self._scheduled:
            self._scheduled = True
            self._loop.call(self._run_scheduled, self._loop)

    def _run_scheduled(self, loop: Loop) -> None:
        if loop is self._loop:  # else the link has moved, or ended
            self._scheduled = False
            self._call_ready()

    def _packet_ready(self, mask: int) -> None:
        self._take_packet()
        self._call_ready()

    def _call_ready(self) -> None:
        self._ready(READ | WRITE if self._room_came else READ)  # a WAKE does not say what it is for

    def _wake(self) -> None:
        self.awake = True
        self._reader.wake()

    @property
    def _room_came(self) -> bool:
        # As a socket that is watched for WRITE: also if `push` has found the room already.
        return bool(self._interest & WRITE) and self._writer.has_room()

    def _comes(self) -> bool:
        """Wait a moment for the peer's next piece; return whether it has come."""
        until = time.perf_counter() + _PATIENCE
        while not self._reader.has_data():
            if time.perf_counter() >= until:
                return False
        return self._reader.available() > 0

    def _gets_room(self, size: int) -> bool:
        """Wait a moment for room; return whether it has come. Otherwise have the peer send WAKE."""
        until = time.perf_counter() + (_PATIENCE if size >= _LARGE else 0.0)
        while self._writer.free() < size:
            if time.perf_counter() >= until and not self._has_room():
                return False
        return True

    def _has_room(self) -> bool:
        """Return whether half of the ring is free; otherwise have the peer send WAKE then."""
        self.blocked = self._writer.sleep()
        return not self.blocked

    def _take_packet(self) -> None:
        # Awake before the WAKE is taken: there will be no other for these bytes, and an awake ring is looked into.
        self._wake()
        try:
            packet = self.sock.recv(MAX_PACKET)  # the system closes the descriptors that a hostile peer sends with it
        except BlockingIOError:  # another thread was faster
            return
        except ConnectionError:  # the peer has ended without reading all of our packets
            packet = b""
        if not packet:
            self._hung_up = True
        elif packet[0] == REFUSED and self._rings.is_client:
            self._error = ConnectionRefusedError(f"the peer refuses: {printable(packet[1:].decode(errors='replace'))}")
        elif packet != WAKE_PACKET:
            self._error = ProtocolError(f"a packet of kind {packet[0]} and {len(packet) - 1} bytes")


def _pieces(buffers: Sequence[memoryview], most: int) -> Iterator[list[memoryview]]:
    """Group the buffers into pieces of at most so many bytes, and cut the larger ones."""
    piece: list[memoryview] = []
    room = most
    for buffer in buffers:
        while len(buffer) > room:
            piece.append(buffer[:room])
            yield piece
            piece, buffer, room = [], buffer[room:], most
        piece.append(buffer)
        room -= len(buffer)
    if piece:
        yield piece
