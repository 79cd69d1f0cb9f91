"""The sending half of a link: the stream's bytes and records into the ring, and direct transfers past it.

    runs:   [small][small] | [large body] | [small] ...
               DATA           ANNOUNCE → GRANT → pwritev, WROTE ...

Small neighbours go into the ring together. A large body is announced, and written into the peer's segment once the peer
grants it (netq/shm/records.py). Owned by a link; never waits.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from netq.buffers import Buffer
from netq.errors import ProtocolError
from netq.shm import records
from netq.shm.descriptors import Descriptors
from netq.shm.records import Kind, Record
from netq.shm.ring import Writer

MIN_DIRECT = 128 * 1024  # bytes of a body for a direct transfer; below, its records cost more than a copy
MAX_BATCH = 8 * 1024 * 1024  # bytes taken from the connection at once, and announced at once
_MIN_BATCH, _INITIAL_BATCH = 32 * 1024, 1024 * 1024  # bytes: with small bodies, and before the sizes are known
_BUFFERS = 512  # buffers in one batch: each has its cost, and delays the other links
_PIECE = 1024 * 1024  # bytes of one direct write, so that the other links have their turn
_MAX_RECORDS = 1024  # records that may wait for room in the ring

# A peer can make pwritev wait: it may hold the lock of the segment's inode. The waits of all slow writes together are
# bounded; beyond the bound everything goes through the ring.
_SLOW = 0.05  # seconds of a slow write of one piece; a usual one takes less than a thousandth
_MAX_WAIT, _WAIT_SHARE = 0.1, 0.02  # seconds of all slow writes, and their share of the link's lifetime
_VECTOR = 512  # buffers in one pwritev; Linux takes 1024 (IOV_MAX)


@dataclass
class _Run:
    """Consecutive buffers that take the same way: in the ring, or by direct transfer."""

    buffers: list[memoryview]
    size: int
    direct: bool = False
    copied: bool = False  # the buffers are copies of the user's


class Sender:
    """Moves bytes to the peer as far as there is room."""

    def __init__(self, writer: Writer, next_buffers: Callable[[int], list[Buffer]], descriptors: Descriptors) -> None:
        self.blocked = False  # the ring has no room for what is next
        self._writer = writer
        self._next_buffers = next_buffers
        self._descriptors = descriptors
        self._records: deque[Record] = deque()
        self._runs: deque[_Run] = deque()
        self._announced = False  # the first run
        self._grant: Record | None = None  # where the next bytes of the first run go
        self._fd = -1  # descriptor of that segment
        self._batch = _INITIAL_BATCH
        self._since = time.monotonic()
        self._waited = 0.0  # seconds in slow writes

    @property
    def empty(self) -> bool:
        """Whether everything that was taken and queued is sent."""
        return not self._runs and not self._records

    def queue(self, record: Record) -> None:
        """Send a record before any more of the stream; raises ProtocolError if the peer leaves too many unread."""
        # Answers to what a peer sends. A peer that announces without reading would make this queue grow without a
        # bound.
        if len(self._records) >= _MAX_RECORDS:
            raise ProtocolError(f"the peer has left {_MAX_RECORDS} records unread")
        self._records.append(record)

    def push(self) -> bool:
        """Send some bytes; return whether there may be more to send now."""
        self.blocked = False
        return self._push_records() and self._push_next() and self._push_records()

    def push_small(self) -> bool:
        """Send the connection's next bytes in one copy; return False if there may be more for `push`."""
        if self._runs or self._records:
            return False
        buffers = self._next_buffers(self._batch)
        size = sum(map(len, buffers))
        if not size:
            return True
        # A batch that is half full shows that there is more to send. Then the next one is as large as some _BUFFERS of
        # these buffers: a small batch for small messages, because each buffer has its cost.
        more = size >= self._batch // 2
        if more:
            self._batch = max(_MIN_BATCH, min(size // len(buffers) * _BUFFERS, MAX_BATCH))
        # One copy and one publication. If the ring has no room for all of it in one piece, the bytes become a run: they
        # are out of the session, so they are sent next, whatever comes.
        if size < MIN_DIRECT and self._writer.put(b"".join((records.data(size), *buffers))):
            return not more
        self._runs.extend(
            _group(buffers) if size >= MIN_DIRECT else [_Run([memoryview(buffer) for buffer in buffers], size)]
        )
        return False

    def keep(self) -> None:
        """Replace the user's buffers by copies."""
        for run in self._runs:
            if not run.copied:
                run.buffers = [memoryview(bytes(buffer)) for buffer in run.buffers]
                run.copied = True

    def clear(self) -> None:
        """Release the memory of users and of the peer: the link has ended."""
        self._runs.clear()
        self._records.clear()
        self._descriptors.clear()

    def granted(self, grant: Record) -> None:
        """Begin the direct transfer that the peer grants; raises ProtocolError if none is due, or the size is wrong."""
        # The size is what the peer says. More than was announced would leave a grant without bytes that belong to it.
        if not self._announced or self._grant is not None or not 0 < grant.size <= self._runs[0].size:
            raise ProtocolError(f"the peer grants {grant.size} bytes that were not announced")
        fd = self._descriptors.find(grant.segment, grant.offset, grant.size)
        if fd is None:
            self._stop()
        else:
            self._grant, self._fd = grant, fd

    def released(self, segment: int) -> None:
        """Close a segment; raises ProtocolError while granted bytes are still to be written there."""
        if self._grant is not None and self._grant.segment == segment:
            raise ProtocolError(f"the peer releases segment {segment}, where it wants {self._grant.size} bytes")
        self._descriptors.close(segment)

    def declined(self) -> None:
        """Send the announced bytes through the ring."""
        if not self._announced or self._grant is not None:
            raise ProtocolError("the peer refuses bytes that were not announced")
        self._end_direct()

    def _push_records(self) -> bool:
        while self._records:
            if self._writer.free() < records.SIZE:
                self.blocked = True
                return False
            self._writer.write([self._records.popleft().pack()])
        return True

    def _push_next(self) -> bool:
        if self._announced:
            return self._grant is not None and self._write_direct(self._grant)
        if not self._runs:
            return not self.push_small()
        # A large body at the front is announced first. Nothing of the stream may follow before the peer answers, so
        # that the bytes of the ring and of the segment keep one order.
        run = self._runs[0]
        if run.direct and not self._writes_too_slow:
            self._announced = True
            self.queue(Record(Kind.ANNOUNCE, size=run.size))
            return True
        return self._push_data(run)

    def _push_data(self, run: _Run) -> bool:
        size = min(run.size, self._writer.free() - records.SIZE)
        if size <= 0:
            self.blocked = True
            return False
        head, run.buffers = _split(run.buffers, size)
        self._writer.write([records.data(size), *head])
        self._count(run, size)
        return True

    def _write_direct(self, grant: Record) -> bool:
        # WROTE is queued after each piece, not at the end: the receiver processes what is there, and a long transfer
        # does not look like silence. The record goes through the ring after the write, so the bytes are there before
        # it.
        run = self._runs[0]
        piece, _ = _split(run.buffers[:_VECTOR], min(grant.size, _PIECE))
        size = 0 if self._writes_too_slow else self._timed_write(piece, grant.offset)
        if not size:
            self._stop()
            return True
        _, run.buffers = _split(run.buffers, size)
        if size < grant.size:
            self._grant = grant._replace(offset=grant.offset + size, size=grant.size - size)
        else:
            self._end_direct(announce_rest=run.size - size >= MIN_DIRECT)
        self.queue(Record(Kind.WROTE, size=size))
        self._count(run, size)
        return True

    def _timed_write(self, piece: list[memoryview], offset: int) -> int:
        """Write; return the count of bytes, 0 after an error. Counts the time if the write is slow."""
        begin = time.monotonic()
        try:
            return os.pwritev(self._fd, piece, offset)
        except OSError:  # no memory, or more than this process may write; the ring has room
            return 0
        finally:
            seconds = time.monotonic() - begin
            if seconds > _SLOW:
                self._waited += seconds

    @property
    def _writes_too_slow(self) -> bool:
        """Whether slow writes have taken too much of this link's time."""
        return self._waited > _MAX_WAIT and self._waited > _WAIT_SHARE * (time.monotonic() - self._since)

    def _stop(self) -> None:
        self._end_direct()
        self.queue(Record(Kind.STOPPED))

    def _end_direct(self, *, announce_rest: bool = False) -> None:
        """End the direct transfer. The rest of the run is announced again, or goes through the ring."""
        self._announced, self._grant, self._runs[0].direct = False, None, announce_rest

    def _count(self, run: _Run, size: int) -> None:
        run.size -= size
        if not run.size:
            self._runs.popleft()


def _group(buffers: Iterable[Buffer]) -> list[_Run]:
    """Join neighbours that take the same way. Headers are bytes, bodies are views: a large body is its own run."""
    runs: list[_Run] = []
    for is_body, group in itertools.groupby(filter(len, buffers), key=lambda buffer: isinstance(buffer, memoryview)):
        views = [memoryview(buffer) for buffer in group]
        size = sum(map(len, views))
        direct = is_body and size >= MIN_DIRECT
        if direct or not runs or runs[-1].direct:
            runs.append(_Run(views, size, direct))
        else:
            runs[-1].buffers += views
            runs[-1].size += size
    return runs


def _split(buffers: list[memoryview], size: int) -> tuple[list[memoryview], list[memoryview]]:
    """Return the first `size` bytes, and the rest. There must be as many."""
    for i, buffer in enumerate(buffers):
        if size < len(buffer):
            return [*buffers[:i], buffer[:size]] if size else buffers[:i], [buffer[size:], *buffers[i + 1 :]]
        size -= len(buffer)
    return buffers, []
