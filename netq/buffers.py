"""The type of buffers that netq accepts, and aligned memory for messages. Pure."""

from __future__ import annotations

import ctypes
import mmap
import pickle
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

NOTHING = memoryview(b"")

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register of today's processors

LARGE = 256 * 1024  # bytes: a block of this size or more is a mapping of its own
_HUGE = 4 * 1024 * 1024  # bytes: two huge pages; smaller blocks gain little
_PAGE = mmap.PAGESIZE
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def aligned(size: int) -> memoryview:
    """Return a writable, 64-byte aligned view of `size` new bytes. Raises MemoryError."""
    if size >= LARGE:
        return memoryview(map_block(size))
    block = bytearray(size + ALIGNMENT)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(block)) % ALIGNMENT
    return memoryview(block)[start : start + size]


def bytes_of(view: memoryview) -> memoryview:
    """Return a view of the same memory as single bytes. Raises BufferError if it is not contiguous."""
    return view if view.format == "B" and view.ndim == 1 and view.c_contiguous else pickle.PickleBuffer(view).raw()


def copy(target: memoryview, source: memoryview) -> None:
    """Copy bytes to a view of the same size; many without the interpreter's lock, so that other threads run.

    A large view is not copied onto itself.
    """
    if source.nbytes < LARGE or source.readonly:
        target[:] = source
    else:
        into, of = ctypes.c_char.from_buffer(target), ctypes.c_char.from_buffer(source)
        if (target_address := ctypes.addressof(into)) != (address := ctypes.addressof(of)):
            ctypes.memmove(target_address, address, source.nbytes)


def use_huge_pages(view: memoryview) -> None:
    """Ask the system for huge pages where a large block of new memory lies, which is filled at once. It may refuse.

    Not for a message that a peer has only announced: its first byte would take a whole huge page.
    """
    if view.nbytes >= _HUGE:
        start = ctypes.addressof(ctypes.c_char.from_buffer(view))
        first = -(-start // _PAGE) * _PAGE
        _madvise(first, (start + view.nbytes) // _PAGE * _PAGE - first, mmap.MADV_HUGEPAGE)


def map_block(size: int) -> mmap.mmap:
    """Return an anonymous mapping of `size` bytes. Raises MemoryError."""
    try:
        # Private: a forked child must not write into it.
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no memory for a message of {size} bytes: {error}") from error
