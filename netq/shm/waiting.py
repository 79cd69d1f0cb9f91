"""The two ends of a ring that wait: for bytes, for room, and for the end of the peer.

A wait spins first: it checks the ring for `spin` seconds, in which a peer on another core may answer. Then it stores
its flag in the ring (ring.py says why no wakeup is lost) and sleeps in the system:

- the reader on an eventfd, its bell, which the peer's writer rings (bell.py);
- the writer on the connection, where the peer's reader sends WAKE.

Both notice the end of the connection, which is also that of a killed process. Each end belongs to one thread at a time;
the two ends of a socket may belong to different threads.
"""

from __future__ import annotations

import errno
import math
import os
import select
import time
from collections.abc import Callable

from netq.io.interrupts import suppress
from netq.shm import bell
from netq.shm.control import REFUSED, ControlSocket
from netq.shm.ring import Reader, Writer
from netq.text import printable

# Bytes copied at once. The peer works on a piece while this side copies the next one; each piece costs some
# microseconds. `python -m benchmarks ring-piece` measures it.
PIECE = 64 * 1024


class Line:
    """The connection to the peer, whose end is that of both rings. The writer waits here; both sides may `end` it."""

    def __init__(self, control: ControlSocket) -> None:
        self.control = control
        self.over = False
        self._refusal = ""
        self._poll = select.poll()
        self._poll.register(control.sock, select.POLLIN)

    def wait_for_packet(self, seconds: float | None) -> bool:
        """Wait for a packet, and take it; return False if none came in time."""
        events = self._poll.poll(None if seconds is None else math.ceil(seconds * 1000))
        if events and not self.check_end():
            with suppress(BlockingIOError):
                self._take()
        return bool(events)

    def check_end(self) -> bool:
        """Return whether the peer has gone, and note it."""
        events = self._poll.poll(0)
        if events and events[0][1] & select.POLLHUP and not self.over:
            self.end()
        return self.over

    def end(self) -> None:
        """Note that the peer has gone, and why, if it said so. What it wrote before is in the ring."""
        self.over = True
        for _ in range(2):  # a peer that left our packets unread makes the first attempt fail
            with suppress(OSError):
                while self._take():
                    pass

    def check_refusal(self) -> None:
        """Raise ConnectionRefusedError if the server has refused this connection."""
        if self._refusal:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"the peer refuses: {self._refusal}")

    def _take(self) -> bool:
        """Take a packet; return False at the end. A packet is a WAKE, or the reason of a server that hangs up."""
        packet = self.control.receive()
        if packet is None:
            return False
        if packet.fd is not None:
            os.close(packet.fd)
        if packet.kind == REFUSED:
            self._refusal = printable(packet.body.decode(errors="replace"))
        return True


class WaitingReader:
    """Reads from a ring. The peer rings `own_bell`."""

    def __init__(self, reader: Reader, line: Line, own_bell: int, spin: float) -> None:
        self._reader = reader
        self._line = line
        self._bell = own_bell
        self._spin = spin
        self._signals = False  # the descriptor is kept readable while there are bytes
        self._epoll = select.epoll()
        self._epoll.register(own_bell, bell.EDGES)
        self._epoll.register(line.control.sock, 0)  # only its end, which is always reported

    def read_into(self, buffer: memoryview, timeout: float | None) -> int:
        """Move bytes into the buffer, after waiting for the first one; return their count, 0 at the end.

        Raises TimeoutError; BlockingIOError if the timeout is 0; ConnectionRefusedError, RingError.
        """
        reader = self._reader
        try:
            size = reader.available() or self._wait(timeout)
            n = 0
            while n < size and (room := len(buffer) - n):
                n += reader.read_into(buffer[n : n + PIECE] if room > PIECE else buffer[n:])
                if reader.claim_wakeup():
                    self._line.control.wake_peer()
            return n
        finally:
            if self._signals:
                self._arm()

    def fileno(self) -> int:
        """Return a descriptor that is readable while there are bytes, or the peer has gone."""
        if not self._signals:
            self._signals = True
            self._arm()
        return self._epoll.fileno()

    def close(self) -> None:
        """Close the descriptor."""
        self._epoll.close()

    def _wait(self, timeout: float | None) -> int:
        """Wait for bytes; return their count, 0 at the end."""
        reader, line = self._reader, self._line
        size = 0
        if timeout == 0:
            self._poll(0)
            if not line.over and not reader.available():
                raise BlockingIOError(errno.EAGAIN, "no bytes are there")
        elif not (self._spin and _spin(reader.has_data, self._spin, timeout)):
            deadline = None if timeout is None else time.monotonic() + timeout
            while not size and reader.sleep() and not line.over:
                came = self._poll(None if deadline is None else max(deadline - time.monotonic(), 0))
                reader.wake()
                if not came:
                    raise TimeoutError(errno.ETIMEDOUT, f"no bytes came within {timeout:g} s")
                size = reader.available()
        size = size or reader.available()
        if not size:
            line.check_refusal()
        return size

    def _poll(self, seconds: float | None) -> bool:
        """Wait for the bell or the end; return whether one of them came."""
        events = self._epoll.poll(seconds)
        if any(fd != self._bell for fd, _ in events) and not self._line.over:
            self._line.end()
        return bool(events)

    def _arm(self) -> None:
        """Have the descriptor become readable with the next byte; make it so if there is one already."""
        self._poll(0)  # no event is pending from here on
        if not self._reader.sleep():
            bell.ring(self._bell)


class WaitingWriter:
    """Writes to a ring. The peer's reader sleeps on `other_bell`."""

    def __init__(self, writer: Writer, line: Line, other_bell: int, spin: float) -> None:
        self._writer = writer
        self._line = line
        self._bell = other_bell
        self._spin = spin

    def write(self, data: memoryview, timeout: float | None) -> int:
        """Write a piece of `data`, after waiting for room; return the count of bytes.

        Raises TimeoutError; BlockingIOError if the timeout is 0; BrokenPipeError, ConnectionRefusedError, RingError.
        """
        if self._line.over:
            self._break()
        writer = self._writer
        if len(data) > PIECE:
            data = data[:PIECE]
        n = writer.write((data,))
        if not n and data:
            self._wait(timeout, len(data))
            n = writer.write((data,))
        if writer.claim_wakeup():
            bell.ring(self._bell)
            if self._line.check_end() and writer.free() < writer.size:  # otherwise it has read everything before
                self._break()
        return n

    def _wait(self, timeout: float | None, size: int) -> None:
        """Wait for room: `size` bytes while it spins, half of the ring while it sleeps."""
        writer = self._writer
        if timeout == 0:
            if self._line.check_end():
                self._break()
            raise BlockingIOError(errno.EAGAIN, "no room: the peer has not read what was sent")
        size = min(size, writer.size // 2)
        if self._spin and _spin(lambda: writer.free() >= size, self._spin, timeout):
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        while writer.sleep():
            if self._line.over:
                self._break()
            if not self._line.wait_for_packet(None if deadline is None else max(deadline - time.monotonic(), 0)):
                raise TimeoutError(errno.ETIMEDOUT, f"the peer read nothing within {timeout:g} s")

    def _break(self) -> None:
        self._line.check_refusal()
        raise BrokenPipeError(errno.EPIPE, "the peer has closed the ring socket, or has died")


def _spin(ready: Callable[[], bool], seconds: float, timeout: float | None) -> bool:
    """Check for some time; return whether it is ready."""
    deadline = time.monotonic() + (seconds if timeout is None else min(seconds, timeout))
    while not ready():
        if time.monotonic() >= deadline:
            return False
    return True
