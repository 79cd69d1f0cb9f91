"""The segments of a link: shared memory for its large messages, into which the peer writes by direct transfer.

A segment is used again for messages of the same link only, never for another peer. A process that was stopped during a
write may continue at any time, and still has the descriptor. A segment is unmapped when there is no view of it, and it
has been idle for a while or the link has ended.

Owned by a link. Only the link's loop takes memory here, but the last view of a segment may be freed in any thread.
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
MAX_SEGMENTS = 64  # of one link: each costs a descriptor on each side


class _Segment:
    """Describes a block. The Memory owns the mapping itself."""

    def __init__(self, block: mmap.mmap, fd: int) -> None:
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        self.size = len(block)
        self.fd: int | None = fd
        self._block = weakref.ref(block)
        self._populated = 0  # bytes whose pages are present
        self._loan: weakref.ref[object] | None = None

    def has(self, address: int) -> bool:
        """Return whether an address is in this block, and the block is still mapped.

        A block is unmapped before its finalizers run, and another block may have its addresses by then.
        """
        return self.address <= address < self.address + self.size and self._block() is not None

    def lend(self, loan: object, make_room: Callable[[], object]) -> None:
        """Call `make_room` when `loan` is freed. All views keep it alive, so the segment is idle then."""
        if self._loan is None or self._loan() is not loan:
            self._loan = weakref.ref(loan)
            weakref.finalize(loan, make_room).atexit = False

    def close(self) -> None:
        """Close the descriptor, if it is still open here."""
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)

    def populate(self, start: int, stop: int) -> None:
        """Have the system provide the pages now, in this process.

        A cgroup pays for the pages that its processes touch first, and the receiver is to pay for its message. And if
        there is no memory, this process notices, not the peer. Called by ctypes, which releases the GIL; mmap.madvise
        keeps it. Before Linux 5.14 this has no effect, and the peer touches the pages first.
        """
        start = max(start, self._populated) // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > self._populated:
            self._populated = stop
            _libc.madvise(ctypes.c_void_p(self.address + start), ctypes.c_size_t(stop - start), _POPULATE_WRITE)


class Segments:
    """Makes the blocks of a link's Memory, and finds the block of a view."""

    def __init__(
        self, connection: Connection, pool: Pool, control: ControlSocket, on_release: Callable[[int], object]
    ) -> None:
        self.pool = pool
        self._connection: Connection | None = (
            connection  # None after the end: unread messages keep blocks, and these keep this
        )
        self._control = control
        self._on_release = weakref.WeakMethod(
            on_release
        )  # arrays outlive the link; they keep this object, but not the link
        self._table: dict[int, _Segment] = {}
        self._numbers = itertools.count(1)
        self.memory = connection.source = Memory(pool.keep, mapping=self._map)
        _all[id(self)] = self

    def renew(self) -> None:
        """Use the present segments for no new message: after a fork, the child sees the same memory."""
        # Mappings of a memfd are shared with the child. A message that came into such a segment later would appear in
        # arrays of the child, too. Called before the fork, in the thread that forks, for each link of this process.
        if self._connection is not None and self._table:
            self.memory.retire()
            self.memory = self._connection.source = Memory(self.pool.keep, mapping=self._map)

    def age(self) -> bool:
        """Free segments that have been idle for long; return whether there are others."""
        self.memory.age()
        return bool(self._table)

    def find(self, view: memoryview) -> tuple[int, int] | None:
        """Return the number of a view's segment and the offset there, ready for the peer to write.

        None if the view is in no segment, or the descriptor cannot be sent: the socket is full, or too many descriptors
        are in transit.
        """
        # A view does not know its block, so the address of its memory determines the segment.
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        for number, segment in list(self._table.items()):
            if segment.has(address):
                start = address - segment.address
                segment.populate(start, start + len(view))
                segment.lend(view.obj, self.pool.make_room)
                return (number, start) if self._send_descriptor(number, segment) else None
        return None

    def end(self) -> None:
        """Free idle segments now, and the others with their last view: the link has ended."""
        if self._connection is not None:
            self._connection.source = None
            self._connection = None
        self.memory.retire()
        for segment in list(self._table.values()):
            segment.close()

    def block_freed(self, number: int) -> None:
        """Forget a block that was unmapped, and report it if the peer has its descriptor."""
        # Without the report the peer would keep its descriptor, and with it the memory, until the link ends.
        segment = self._table.pop(number)
        is_sent = segment.fd is None
        segment.close()
        if is_sent and (on_release := self._on_release()):
            on_release(number)

    def _send_descriptor(self, number: int, segment: _Segment) -> bool:
        """Send the descriptor once, and close it: the mapping has its own. Return whether the peer has it."""
        # The socket never blocks: if it is full, the message comes through the ring. It is sent before the GRANT that
        # names it, so the peer finds it in its socket when it reads the GRANT (Descriptors._await).
        if segment.fd is not None:
            try:
                self._control.send(SEGMENT, NUMBER.pack(number), segment.fd)
            except OSError:
                return False
            segment.close()
        return True

    def _map(self, size: int) -> mmap.mmap:
        """Return a new segment, or private memory if there can be none; that is filled through the ring."""
        with contextlib.suppress(OSError, OverflowError):
            return self._make(size)
        try:
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"no memory for a message of {size} bytes: {error}") from error

    def _make(self, size: int) -> mmap.mmap:
        # A segment costs a descriptor on each side, and its pages come on first use. So there is none beyond the limit,
        # where descriptors are scarce, and in strict overcommit, where a missing page would end the process.
        if len(self._table) >= MAX_SEGMENTS or memfd.strict():
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
        weakref.finalize(block, _report_freed, weakref.WeakMethod(self.block_freed), number).atexit = False
        return block


class Pool:
    """Bounds the idle segments of all links of one communicator. Used in all their loops."""

    def __init__(self, memory: int) -> None:
        self.keep = min(KEEP, memory // 4)  # bytes of idle segments; `memory` is what the communicator may use

    def make_room(self) -> None:
        """Free idle segments above the bound, from the links with the most.

        Called before a segment is made, and when one has become idle, in any thread.
        """
        # The links with the most idle memory give up first. Other loops may change these figures meanwhile: the bound
        # is approximate. A lock would not do: the garbage collector may call this at any point, also in a
        # thread that holds that lock.
        idle = [(member.memory.idle, member.memory) for member in _living() if member.pool is self]
        over = sum([held for held, _ in idle]) - self.keep
        for held, memory in sorted(idle, key=operator.itemgetter(0), reverse=True):
            if over <= 0:
                break
            memory.trim(max(held - over, 0))
            over -= held - memory.idle


_all: weakref.WeakValueDictionary[int, Segments] = weakref.WeakValueDictionary()


def _living() -> list[Segments]:
    return [segments for ref in _all.valuerefs() if (segments := ref())]


def _report_freed(block_freed: weakref.WeakMethod[Callable[[int], None]], number: int) -> None:
    """Report a freed block. The reference is weak: a strong one would keep the Segments, which may hold the block."""
    if report := block_freed():
        report(number)


def _renew_all() -> None:
    for segments in _living():
        segments.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_renew_all)
