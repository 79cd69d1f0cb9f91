"""The memory of one link's large messages: segments, to which the peer writes straight from its user's buffers.

A segment is used again for messages of the same link only, never for another peer's: a process that was stopped in the
middle of writing may wake up at any time, and still has the descriptor. It goes when nobody has a view of it and it
has been idle for a while, or the link is gone.

Owned by a link, whose loop alone takes memory here. The last view of a segment may die in any thread.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from typing import NamedTuple

from netq.connection import Connection
from netq.memory import Memory
from netq.shm import memfd

_libc = ctypes.CDLL(None)
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE (linux/mman.h)
MOST = 64  # segments of one link: each costs a descriptor on either side


class Place(NamedTuple):
    """Where a view lies; `fd` is the segment's, if the peer does not have it yet."""

    segment: int
    offset: int
    fd: int | None


class _Segment:
    """What is known of a block that somebody else owns: the mapping itself is the Memory's."""

    def __init__(self, block: mmap.mmap, fd: int) -> None:
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        self.size = len(block)
        self.fd: int | None = fd
        self._block = weakref.ref(block)
        self._populated = 0  # bytes
        self._loan: weakref.ref[object] | None = None

    def has(self, address: int) -> bool:
        """Return whether an address lies here: not if the block is dying.

        The system unmaps it before anybody is told of its end, and another may have its addresses by then.
        """
        return self.address <= address < self.address + self.size and self._block() is not None

    def is_lent(self, loan: object) -> bool:
        """Return whether it is known that `loan` is what its views keep alive, and know it from now on."""
        known = self._loan is not None and self._loan() is loan
        self._loan = weakref.ref(loan)
        return known

    def populate(self, start: int, stop: int) -> None:
        """Take the pages from the system here, in the name of who will hold them (a cgroup pays for what it touches
        first), and so that it is this process that learns it if there are none. Without the GIL, which mmap.madvise
        would keep. Before Linux 5.14 the peer takes them.
        """
        start = max(start, self._populated) // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > self._populated:
            self._populated = stop
            _libc.madvise(ctypes.c_void_p(self.address + start), ctypes.c_size_t(stop - start), _POPULATE_WRITE)


class _Table:
    """The segments that there are. It keeps no block and no link: a block's end is what it is told of."""

    def __init__(self, released: Callable[[int], object]) -> None:
        self.segments: dict[int, _Segment] = {}
        self._released = weakref.WeakMethod(released)

    def gone(self, number: int) -> None:
        """A block is no more."""
        segment = self.segments.pop(number)
        was_sent = segment.fd is None
        _close(segment)
        if was_sent and (released := self._released()):
            released(number)


class Segments:
    """Makes the blocks of a link's Memory, and finds the one that a view lies in."""

    def __init__(self, connection: Connection, pool: Pool, released: Callable[[int], object]) -> None:
        self._connection: Connection | None = connection  # until the end: what waits for users holds blocks
        self._pool = pool
        self._next = 1
        self._ended = False
        self._table = _Table(released)
        self.memory = self._begin()
        pool.add(self)
        _all[id(self)] = self

    def renew(self) -> None:
        """Use no present segment for a message to come: a forked child has a view of it, and does not expect that."""
        self.memory.retire()
        self.memory = self._begin()

    @property
    def used(self) -> bool:
        """Whether there are segments."""
        return bool(self._table.segments) and not self._ended

    def find(self, view: memoryview) -> Place | None:
        """Return where a view lies, ready to be written to; None if in no segment of this link."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        for number, segment in list(self._table.segments.items()):
            if segment.has(address):
                start = address - segment.address
                segment.populate(start, start + len(view))
                if not segment.is_lent(view.obj):
                    weakref.finalize(view.obj, self._pool.make_room, segment.size).atexit = False
                return Place(number, start, segment.fd)
        return None

    def sent(self, number: int) -> None:
        """The peer has the descriptor now: the mapping has one of its own."""
        _close(self._table.segments[number])

    def end(self) -> None:
        """The link is gone: what is idle goes, and what is in use goes with its last view."""
        self._ended = True
        if self._connection is not None:
            self._connection.source = None
            self._connection = None
        self.memory.retire()
        for segment in list(self._table.segments.values()):
            _close(segment)

    def _begin(self) -> Memory:
        memory = Memory(self._pool.keep, mapping=self._map)
        if self._connection is not None:
            self._connection.source = memory
        return memory

    def _map(self, size: int) -> mmap.mmap:
        """A new segment; private memory, to be filled through the ring, if there cannot be one."""
        try:
            return self._make(size)
        except (OSError, OverflowError):
            pass
        try:
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"no memory for a message of {size} bytes: {error}") from error

    def _make(self, size: int) -> mmap.mmap:
        if len(self._table.segments) >= MOST or memfd.strict():
            raise OSError("enough segments")
        self._pool.make_room()
        fd = memfd.make(size)
        try:
            if memfd.scarce(fd):
                raise OSError("few descriptors are left")
            block = mmap.mmap(fd, size)
        except BaseException:
            os.close(fd)
            raise
        self._register(block, fd)
        return block

    def _register(self, block: mmap.mmap, fd: int) -> None:
        number, self._next = self._next, self._next + 1
        self._table.segments[number] = _Segment(block, fd)
        weakref.finalize(block, self._table.gone, number).atexit = False


class Pool:
    """All that the links of one communicator have: how much of it may lie idle. Used in the loops of all of them."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._members: weakref.WeakValueDictionary[int, Segments] = weakref.WeakValueDictionary()

    def add(self, member: Segments) -> None:
        """Count a link's segments."""
        self._members[id(member)] = member

    def make_room(self, size: int = 0) -> None:
        """Let idle segments of all links go, if they are too many together: a new one is about to be made, or one of
        `size` bytes is about to come back, in whatever thread its last view died."""
        members = [member for ref in self._members.valuerefs() if (member := ref())]
        idle = sorted([(member.memory.idle, member) for member in members], key=lambda pair: pair[0], reverse=True)
        over = sum([held for held, _ in idle]) + size - self.keep
        for held, member in idle:
            if over <= 0:
                break
            member.memory.trim(max(held - over, 0))
            over -= held - member.memory.idle


def _close(segment: _Segment) -> None:
    fd, segment.fd = segment.fd, None
    if fd is not None:
        os.close(fd)


_all: weakref.WeakValueDictionary[int, Segments] = weakref.WeakValueDictionary()


def _renew_all() -> None:
    for ref in _all.valuerefs():
        if (segments := ref()) and segments.used:
            segments.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_renew_all)
