"""The type of buffers that netq accepts, and aligned memory for messages. Pure."""

from __future__ import annotations

import ctypes
import mmap
import pickle
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register of today's processors

LARGE = 256 * 1024  # bytes: a block of this size or more is a mapping of its own
_HUGE = 2 * 1024 * 1024  # bytes: a huge page
_PAGE = mmap.PAGESIZE
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def aligned(size: int) -> memoryview:
    """Return a writable, 64-byte aligned view of `size` new bytes. Raises MemoryError.

    A large block is a mapping, of which the system commits the pages that are written. Its first `LARGE` bytes or more
    are small pages: a peer that announces a message takes no huge page before it has sent so much.
    """
    huge = max(size - LARGE, 0) // _HUGE * _HUGE  # bytes of huge pages, at the end
    head, alignment = ((size - huge) // _PAGE * _PAGE, _HUGE) if huge else (0, ALIGNMENT)
    block = bytearray(size + alignment) if size < LARGE else _mapping(size, size + alignment)
    start = -(ctypes.addressof(ctypes.c_char.from_buffer(block)) + head) % alignment
    view = memoryview(block)[start : start + size]
    if huge:
        use_huge_pages(view[head:])
    return view


def bytes_of(view: memoryview) -> memoryview:
    """Return a view of the same memory as single bytes. Raises BufferError if it is not contiguous."""
    return view if view.format == "B" and view.ndim == 1 and view.c_contiguous else pickle.PickleBuffer(view).raw()


def copy(target: memoryview, source: memoryview) -> None:
    """Copy bytes to a view of the same size; many without the interpreter's lock, so that other threads run."""
    if source.nbytes < LARGE or source.readonly:
        target[:] = source
    else:
        into, of = ctypes.c_char.from_buffer(target), ctypes.c_char.from_buffer(source)
        ctypes.memmove(ctypes.addressof(into), ctypes.addressof(of), source.nbytes)


def use_huge_pages(view: memoryview) -> None:
    """Ask the system for huge pages where a large block of new memory lies, which is filled at once. It may refuse."""
    if view.nbytes >= _HUGE:
        start = ctypes.addressof(ctypes.c_char.from_buffer(view))
        first = -(-start // _PAGE) * _PAGE
        _madvise(first, (start + view.nbytes) // _PAGE * _PAGE - first, mmap.MADV_HUGEPAGE)


def _mapping(size: int, length: int) -> mmap.mmap:
    """Return an anonymous mapping of `length` bytes, for `size`. Raises MemoryError."""
    try:
        return mmap.mmap(
            -1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )  # private: a forked child must not write into it
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no memory for a message of {size} bytes: {error}") from error
