"""What a link receives: the stream's bytes, out of the ring to where the connection wants them, or beside it.

Owned by a link; never waits. Raises ProtocolError or RingError for a peer that does what it must not: the link is lost
then, and nothing else suffers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from netq.errors import ProtocolError
from netq.protocol.connection import Connection
from netq.protocol.events import Event
from netq.shm import records
from netq.shm.records import Kind, Record
from netq.shm.ring import Reader
from netq.shm.segments import Segments
from netq.shm.sender import BATCH

_WHOLE = 64  # steps of taking what is small, in a user's thread


class Receiver:
    """Takes records out of the ring, and bytes of the stream into the connection."""

    def __init__(
        self,
        reader: Reader,
        connection: Connection,
        segments: Segments,
        deliver: Callable[[Sequence[Event]], None],
    ) -> None:
        self.deaf = False  # the link is closing: what comes is for nobody
        self._reader = reader
        self._connection = connection
        self._segments = segments
        self._deliver = deliver
        self._header = memoryview(bytearray(records.SIZE))
        self._granted = memoryview(b"")  # where the peer writes beside; held, so that nobody else gets it
        self._left = 0  # bytes of the present DATA that are still in the ring

    def next(self) -> Record | None:
        """Return the next record, if there is one; the bytes of DATA are still in the ring, for `take`."""
        ready = self._reader.ready()
        if not ready:
            return None
        if ready < records.SIZE:
            raise ProtocolError(f"{ready} bytes of a record that has {records.SIZE}")
        self._reader.read_into(self._header)
        said = Record(*records.unpack(self._header))
        if said.kind == Kind.DATA:
            if not 0 < said.size <= ready - records.SIZE:
                raise ProtocolError(f"{said.size} bytes are said to follow, {ready - records.SIZE} do")
            if self._granted:
                raise ProtocolError(f"bytes in the ring before {len(self._granted)} that come beside it")
            self._left = said.size
        return said

    def take_small(self) -> bool:
        """Take DATA of small whole messages and ACKs where they lie, in a user's thread.

        Return False if there is anything else: the loop's thread has to go on.
        """
        reader = self._reader
        for _ in range(_WHOLE):
            ready = reader.ready()
            if self._left or ready < records.SIZE:
                return not ready
            data = reader.look(records.SIZE)
            kind, _, _, size = records.unpack(data)
            stop = records.SIZE + size
            if kind != Kind.DATA or not size or stop > ready:
                return False
            if stop > len(data):
                data = reader.look(stop)
            low = self._connection.read_small(data, records.SIZE, stop, time.monotonic())
            reader.skip(low)
            self._left = stop - low
            if self._left or not reader.waits():
                return not self._left
        return True

    def take(self, most: int) -> int:
        """Take some of the bytes that are left of DATA; return how many, 0 if none are."""
        if not self._left:
            return 0
        n = self._reader.read_into(self._connection.buffer()[: min(self._left, most)])
        self._left -= n
        self._came(n)
        return n

    def offer(self, said: Record) -> Record:
        """Return the answer to ANNOUNCE: how many of the bytes may be written where, or that they come in the ring."""
        if self._granted or not said.size:
            raise ProtocolError(f"{said.size} bytes are announced before {len(self._granted)} others have come")
        view = self._connection.buffer()[: min(said.size, BATCH)]  # it costs: its pages are taken here and now
        place = self._segments.find(view)
        if place is None:
            return Record(Kind.INLINE)
        self._granted = view
        return Record(Kind.GRANT, *place, len(view))

    def wrote(self, said: Record) -> None:
        """Take bytes that the peer has written beside the ring."""
        if not 0 < said.size <= len(self._granted):
            raise ProtocolError(f"{said.size} bytes were written beside the ring, {len(self._granted)} were allowed")
        self._granted = self._granted[said.size :] if said.size < len(self._granted) else memoryview(b"")
        self._came(said.size)

    def stopped(self) -> None:
        """The rest of what was granted comes in the ring."""
        if not self._granted:
            raise ProtocolError("the peer cannot write where it was not asked to")
        self.clear()

    def clear(self) -> None:
        """Hold no memory any more."""
        self._granted = memoryview(b"")

    def _came(self, n: int) -> None:
        if not self.deaf and (events := self._connection.received(n, time.monotonic())):
            self._deliver(events)
