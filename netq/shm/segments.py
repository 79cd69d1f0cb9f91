"""The memory of one link's large messages: segments, to which the peer writes straight from its user's buffers.

A segment is used again for messages of the same link only, never for another peer's: a process that was stopped in the
middle of writing may wake up at any time, and still has the descriptor. It goes when nobody has a view of it and it
has been idle for a while, or the link is gone.

Owned by a link, whose loop alone takes memory here. The last view of a segment may die in any thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import operator
import os
import weakref
from collections.abc import Callable

from netq.protocol.connection import Connection
from netq.protocol.memory import KEEP, Memory
from netq.shm import memfd
from netq.shm.control import NUMBER, SEGMENT, ControlSocket

_libc = ctypes.CDLL(None)
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE (linux/mman.h)
MOST = 64  # segments of one link: each costs a descriptor on either side


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

    def lend(self, loan: object, make_room: Callable[[int], object]) -> None:
        """Have room made when `loan`, which all views of it keep alive, ends: then it is idle."""
        if self._loan is None or self._loan() is not loan:
            self._loan = weakref.ref(loan)
            weakref.finalize(loan, make_room, self.size).atexit = False

    def close(self) -> None:
        """Let go of the descriptor, if it is still here."""
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)

    def populate(self, start: int, stop: int) -> None:
        """Take the pages from the system here, in the name of who will hold them (a cgroup pays for what it touches
        first), and so that it is this process that learns it if there are none. Without the GIL, which mmap.madvise
        would keep. Before Linux 5.14 the peer takes them.
        """
        start = max(start, self._populated) // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > self._populated:
            self._populated = stop
            _libc.madvise(ctypes.c_void_p(self.address + start), ctypes.c_size_t(stop - start), _POPULATE_WRITE)


class Segments:
    """Makes the blocks of a link's Memory, and finds the one that a view lies in."""

    def __init__(
        self, connection: Connection, pool: Pool, control: ControlSocket, released: Callable[[int], object]
    ) -> None:
        self.pool = pool
        self._connection: Connection | None = connection  # until the end: what waits for users holds blocks
        self._control = control
        self._released = weakref.WeakMethod(released)  # arrays that outlive the link keep this, and no link
        self._table: dict[int, _Segment] = {}
        self._numbers = itertools.count(1)
        self.memory = connection.source = Memory(pool.keep, mapping=self._map)
        _all[id(self)] = self

    def renew(self) -> None:
        """Use no present segment for a message to come: a forked child has a view of it, and does not expect that."""
        if self._connection is not None and self._table:
            self.memory.retire()
            self.memory = self._connection.source = Memory(self.pool.keep, mapping=self._map)

    def age(self) -> bool:
        """Let segments go that have been idle for long; return whether there are others."""
        self.memory.age()
        return bool(self._table)

    def find(self, view: memoryview) -> tuple[int, int] | None:
        """Return the number of the segment that a view lies in, and where, ready for the peer to write there.

        None if it is in no segment, or the peer cannot have it: its socket is full, or too many are under way.
        """
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        for number, segment in list(self._table.items()):
            if segment.has(address):
                start = address - segment.address
                segment.populate(start, start + len(view))
                segment.lend(view.obj, self.pool.make_room)
                return (number, start) if self._share(number, segment) else None
        return None

    def end(self) -> None:
        """The link is gone: what is idle goes, and what is in use goes with its last view."""
        if self._connection is not None:
            self._connection.source = None
            self._connection = None
        self.memory.retire()
        for segment in list(self._table.values()):
            segment.close()

    def gone(self, number: int) -> None:
        """A block is no more."""
        segment = self._table.pop(number)
        was_sent = segment.fd is None
        segment.close()
        if was_sent and (released := self._released()):
            released(number)

    def _share(self, number: int, segment: _Segment) -> bool:
        """Send the descriptor, if the peer does not have it yet; the mapping here has one of its own."""
        if segment.fd is not None:
            try:
                self._control.send(SEGMENT, NUMBER.pack(number), segment.fd)
            except OSError:
                return False
            segment.close()
        return True

    def _map(self, size: int) -> mmap.mmap:
        """A new segment; private memory, to be filled through the ring, if there cannot be one."""
        with contextlib.suppress(OSError, OverflowError):
            return self._make(size)
        try:
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"no memory for a message of {size} bytes: {error}") from error

    def _make(self, size: int) -> mmap.mmap:
        if len(self._table) >= MOST or memfd.strict():
            raise OSError("enough segments")
        self.pool.make_room()
        fd = memfd.make(size)
        try:
            if memfd.scarce(fd):
                raise OSError("few descriptors are left")
            block = mmap.mmap(fd, size)
        except BaseException:
            os.close(fd)
            raise
        number = next(self._numbers)
        self._table[number] = _Segment(block, fd)
        weakref.finalize(block, _tell, weakref.WeakMethod(self.gone), number).atexit = False
        return block


class Pool:
    """All that the links of one communicator have: how much of it may lie idle. Used in the loops of all of them."""

    def __init__(self, memory: int) -> None:
        self.keep = min(KEEP, memory // 4)  # of the `memory` that the communicator may use

    def make_room(self, size: int = 0) -> None:
        """Let idle segments of all links go, if they are too many together: a new one is about to be made, or one of
        `size` bytes is about to come back, in whatever thread its last view died."""
        idle = [(member.memory.idle, member.memory) for member in _alive() if member.pool is self]
        over = sum([held for held, _ in idle]) + size - self.keep
        for held, memory in sorted(idle, key=operator.itemgetter(0), reverse=True):
            if over <= 0:
                break
            memory.trim(max(held - over, 0))
            over -= held - memory.idle


_all: weakref.WeakValueDictionary[int, Segments] = weakref.WeakValueDictionary()


def _alive() -> list[Segments]:
    return [segments for ref in _all.valuerefs() if (segments := ref())]


def _tell(gone: weakref.WeakMethod[Callable[[int], None]], number: int) -> None:
    """Tell a link's segments of a block's end. What waits for that must not keep them: they may hold the block."""
    if tell := gone():
        tell(number)


def _renew_all() -> None:
    for segments in _alive():
        segments.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_renew_all)
