"""What a link sends: the connection's bytes, in the ring or beside it, and the records of both sides' transfers.

Small buffers are copied into the ring. The body of a frame that is large is announced, and written to where the
peer wants it, by the system and straight from the user's buffers (pwritev: it does not map the peer's memory, and lets
other threads run). One at a time, for all that follows must wait in its place.

Owned by a link; never waits.
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

BESIDE = 128 * 1024  # bytes from which a body goes beside the ring: the records of that cost more than a short copy
BATCH = 8 * 1024 * 1024  # bytes taken from the connection at once, and announced at once at most
_FEW, _BEGIN = 32 * 1024, 1024 * 1024  # bytes taken at once of bodies that are small, and before any are known
_BUFFERS = 512  # that should be taken at once: each costs, and the others wait
_PIECE = 1024 * 1024  # bytes written beside before the others have their turn
_RECORDS = 1024  # that may wait for room in the ring
_LONG = 0.05  # seconds that writing a piece may take: usually it is less than one thousandth
_PATIENCE, _SHARE = 0.1, 0.02  # seconds that longer writes may take together, and their share of all time
_VECTOR = 512  # buffers in one pwritev; Linux takes 1024 (IOV_MAX)


@dataclass
class _Run:
    """Buffers that go one way."""

    buffers: list[memoryview]
    size: int
    beside: bool = False
    kept: bool = False  # the buffers are copies


class Sender:
    """Moves bytes on as far as the peer lets it."""

    def __init__(self, writer: Writer, take: Callable[[int], list[Buffer]], files: Descriptors) -> None:
        self.blocked = False  # the ring is too full for what is next
        self._writer = writer
        self._take = take
        self._files = files
        self._records: deque[Record] = deque()
        self._runs: deque[_Run] = deque()
        self._announced = False  # the first run
        self._grant: Record | None = None  # where the peer wants what is next of it,
        self._fd = -1  # and the descriptor of that segment
        self._batch = _BEGIN
        self._begun = time.monotonic()
        self._waited = 0.0  # seconds, in writes that took too long

    @property
    def empty(self) -> bool:
        """Whether all that was taken and said is gone."""
        return not self._runs and not self._records

    def say(self, said: Record) -> None:
        """Send a record, before any more of the stream; raises ProtocolError if the peer has long read none."""
        if len(self._records) >= _RECORDS:
            raise ProtocolError(f"the peer has left {_RECORDS} records unread")
        self._records.append(said)

    def push(self) -> bool:
        """Send some; return whether there may be more that can be sent now."""
        self.blocked = False
        return self._push_records() and self._push_next() and self._push_records()

    def push_small(self) -> bool:
        """Send the connection's next bytes in one copy; return False if there may be more for `push`."""
        if self._runs or self._records:
            return False
        buffers = self._take(self._batch)
        size = sum(map(len, buffers))
        if not size:
            return True
        more = size >= self._batch // 2
        if more:
            self._batch = max(_FEW, min(size // len(buffers) * _BUFFERS, BATCH))
        if size < BESIDE and self._writer.put(b"".join((records.data(size), *buffers))):
            return not more
        self._runs.extend(
            _group(buffers) if size >= BESIDE else [_Run([memoryview(buffer) for buffer in buffers], size)]
        )
        return False

    def keep(self) -> None:
        """Go on with copies."""
        for run in self._runs:
            if not run.kept:
                run.buffers = [memoryview(bytes(buffer)) for buffer in run.buffers]
                run.kept = True

    def clear(self) -> None:
        """The link is gone: let go of the memory of users and of the peer."""
        self._runs.clear()
        self._records.clear()
        self._files.clear()

    def granted(self, said: Record) -> None:
        """The peer says where the announced bytes may go; raises ProtocolError unless that is due, and they fit."""
        if not self._announced or self._grant is not None or not 0 < said.size <= self._runs[0].size:
            raise ProtocolError(f"the peer grants {said.size} bytes that were not announced")
        fd = self._files.place(said.segment, said.offset, said.size)
        if fd is None:
            self._stop()
        else:
            self._grant, self._fd = said, fd

    def released(self, segment: int) -> None:
        """The peer wants nothing there any more; raises ProtocolError if what it wanted is not all written."""
        if self._grant is not None and self._grant.segment == segment:
            raise ProtocolError(f"the peer releases segment {segment}, where it wants {self._grant.size} bytes")
        self._files.close(segment)

    def inline(self) -> None:
        """The peer wants the announced bytes in the ring."""
        if not self._announced or self._grant is not None:
            raise ProtocolError("the peer refuses bytes that were not announced")
        self._end_beside()

    def _push_records(self) -> bool:
        while self._records:
            if self._writer.room() < records.SIZE:
                self.blocked = True
                return False
            self._writer.write([self._records.popleft().pack()])
        return True

    def _push_next(self) -> bool:
        if self._announced:
            return self._grant is not None and self._write(self._grant)
        if not self._runs:
            return not self.push_small()
        run = self._runs[0]
        if run.beside and not self._waits:
            self._announced = True
            self.say(Record(Kind.ANNOUNCE, size=run.size))
            return True
        return self._push_data(run)

    def _push_data(self, run: _Run) -> bool:
        size = min(run.size, self._writer.room() - records.SIZE)
        if size <= 0:
            self.blocked = True
            return False
        head, run.buffers = _split(run.buffers, size)
        self._writer.write([records.data(size), *head])
        self._count(run, size)
        return True

    def _write(self, grant: Record) -> bool:
        run = self._runs[0]
        piece, _ = _split(run.buffers[:_VECTOR], min(grant.size, _PIECE))
        size = 0 if self._waits else self._timed(piece, grant.offset)
        if not size:
            self._stop()
            return True
        _, run.buffers = _split(run.buffers, size)
        if size < grant.size:
            self._grant = grant._replace(offset=grant.offset + size, size=grant.size - size)
        else:
            self._end_beside(more=run.size - size >= BESIDE)
        self.say(Record(Kind.WROTE, size=size))
        self._count(run, size)
        return True

    def _timed(self, piece: list[memoryview], offset: int) -> int:
        """Write; return how much was written. A peer that holds the file's lock can make it wait, and all our loop."""
        begin = time.monotonic()
        try:
            return os.pwritev(self._fd, piece, offset)
        except OSError:  # no memory, or more than this process may write: the ring has room
            return 0
        finally:
            took = time.monotonic() - begin
            if took > _LONG:
                self._waited += took

    @property
    def _waits(self) -> bool:
        """Whether writing beside has made us wait too much: all goes through the ring, until that is long ago."""
        return self._waited > _PATIENCE and self._waited > _SHARE * (time.monotonic() - self._begun)

    def _stop(self) -> None:
        self._end_beside()
        self.say(Record(Kind.STOPPED))

    def _end_beside(self, *, more: bool = False) -> None:
        """What was announced is settled; with `more`, the rest of the run is announced again."""
        self._announced, self._grant, self._runs[0].beside = False, None, more

    def _count(self, run: _Run, size: int) -> None:
        run.size -= size
        if not run.size:
            self._runs.popleft()


def _group(buffers: Iterable[Buffer]) -> list[_Run]:
    """Join neighbours that go one way. Headers are bytes and bodies are views, so a large body is a run of its own."""
    runs: list[_Run] = []
    for is_body, group in itertools.groupby(filter(len, buffers), key=lambda buffer: isinstance(buffer, memoryview)):
        views = [memoryview(buffer) for buffer in group]
        size = sum(map(len, views))
        beside = is_body and size >= BESIDE
        if beside or not runs or runs[-1].beside:
            runs.append(_Run(views, size, beside))
        else:
            runs[-1].buffers += views
            runs[-1].size += size
    return runs


def _split(buffers: list[memoryview], size: int) -> tuple[list[memoryview], list[memoryview]]:
    """The first `size` bytes, and the rest; for one who knows that there are as many."""
    for i, buffer in enumerate(buffers):
        if size < len(buffer):
            return [*buffers[:i], buffer[:size]] if size else buffers[:i], [buffer[size:], *buffers[i + 1 :]]
        size -= len(buffer)
    return buffers, []
