"""The type of buffers that netq accepts, and aligned memory for messages. Pure."""

from __future__ import annotations

import ctypes
import mmap
import pickle
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register of today's processors

LARGE = 256 * 1024  # bytes: a block of this size or more is a mapping of its own, and is reused


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


def map_block(size: int) -> mmap.mmap:
    """Return an anonymous mapping of `size` bytes. Raises MemoryError."""
    try:
        return mmap.mmap(
            -1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )  # private: a forked child must not write into it
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no memory for a message of {size} bytes: {error}") from error
