"""The receiving half of a link: records out of the ring, and bytes of the stream into the connection.

The bytes come in the ring or by direct transfer (netq/shm/records.py). Owned by a link; never waits. A peer that breaks
the rules raises ProtocolError or RingError, which ends the link and nothing else.
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
from netq.shm.sender import MAX_BATCH

_INLINE_STEPS = 64  # DATA records that a user's thread processes in one call


class Receiver:
    """Takes records out of the ring, and moves bytes of the stream into the connection."""

    def __init__(
        self,
        reader: Reader,
        connection: Connection,
        segments: Segments,
        deliver: Callable[[Sequence[Event]], None],
    ) -> None:
        self.discarding = False  # the link is closing: received bytes are dropped
        self._reader = reader
        self._connection = connection
        self._segments = segments
        self._deliver = deliver
        self._header = memoryview(bytearray(records.SIZE))
        self._granted = memoryview(b"")  # memory of the direct transfer; the view keeps it from being used otherwise
        self._unread = 0  # bytes of the present DATA that are still in the ring

    def next_record(self) -> Record | None:
        """Return the next record, if there is one. The bytes of DATA stay in the ring, for `take`."""
        available = self._reader.available()
        if not available:
            return None
        if available < records.SIZE:
            raise ProtocolError(f"{available} bytes of a record that has {records.SIZE}")
        self._reader.read_into(self._header)
        record = Record(*records.unpack(self._header))
        if record.kind == Kind.DATA:
            if not 0 < record.size <= available - records.SIZE:
                raise ProtocolError(f"{record.size} bytes are said to follow, {available - records.SIZE} do")
            if self._granted:
                raise ProtocolError(f"bytes in the ring before {len(self._granted)} that come by direct transfer")
            self._unread = record.size
        return record

    def take_small(self) -> bool:
        """Process DATA with small whole messages and ACKs in place, in a user's thread.

        Return False if there is anything else, which the loop's thread has to process.
        """
        reader = self._reader
        for _ in range(_INLINE_STEPS):
            available = reader.available()
            if self._unread or available < records.SIZE:
                return not available
            data = reader.peek(records.SIZE)
            kind, _, _, size = records.unpack(data)
            stop = records.SIZE + size
            if kind != Kind.DATA or not size or stop > available:
                return False
            if stop > len(data):
                data = reader.peek(stop)
            # The connection parses the frames where they are, in the ring. It returns the position of the first frame
            # that is not small and complete; from there on, the loop's thread takes the bytes.
            low = self._connection.read_small(data, records.SIZE, stop, time.monotonic())
            reader.skip(low)
            self._unread = stop - low
            if self._unread or not reader.has_data():
                return not self._unread
        return True

    def take(self, limit: int) -> int:
        """Move up to `limit` bytes of the present DATA into the connection; return how many, 0 if none are left."""
        if not self._unread:
            return 0
        n = self._reader.read_into(self._connection.buffer()[: min(self._unread, limit)])
        self._unread -= n
        self._process(n)
        return n

    def answer(self, announce: Record) -> Record:
        """Return GRANT or INLINE, the answer to an ANNOUNCE."""
        # The memory is the connection's own buffer for the next bytes, so nothing is copied if it lies in a segment.
        if self._granted or not announce.size:
            raise ProtocolError(f"{announce.size} bytes are announced before {len(self._granted)} others have come")
        # At most a batch: the system provides the pages of a fresh segment here and now, in this turn of the loop.
        view = self._connection.buffer()[: min(announce.size, MAX_BATCH)]
        place = self._segments.find(view)
        if place is None:
            return Record(Kind.INLINE)
        self._granted = view
        return Record(Kind.GRANT, *place, len(view))

    def wrote(self, record: Record) -> None:
        """Process bytes that the peer has written by direct transfer."""
        # Whether the bytes are really there cannot be checked, and garbage harms only the session of this peer. But
        # more than was granted would be counted beyond the end of the connection's buffer.
        if not 0 < record.size <= len(self._granted):
            raise ProtocolError(
                f"{record.size} bytes were written by direct transfer, {len(self._granted)} were allowed"
            )
        self._granted = self._granted[record.size :] if record.size < len(self._granted) else memoryview(b"")
        self._process(record.size)

    def stopped(self) -> None:
        """End the direct transfer: its other bytes come in the ring."""
        if not self._granted:
            raise ProtocolError("the peer cannot write where it was not asked to")
        self.clear()

    def clear(self) -> None:
        """Release the memory of the direct transfer."""
        self._granted = memoryview(b"")

    def _process(self, n: int) -> None:
        if not self.discarding and (events := self._connection.received(n, time.monotonic())):
            self._deliver(events)
