"""Allocates the memory of incoming messages, and reuses large blocks.

Writing to fresh memory costs some ten times as much as writing to used memory, because the kernel provides it page by
page. Large blocks are therefore kept when their last view is gone, and handed out again. A block is an anonymous
mapping: the kernel commits its pages as bytes arrive, not as they are announced.

Owned by one loop; only that loop calls `take` and `trim`. The last view of a block may be freed in any thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import weakref
from collections import deque

from netq.buffers import LARGE, aligned, map_block
from netq.protocol.flow_control import Budget

KEEP = 256 * 1024 * 1024  # bytes of idle blocks, at most


class Memory:
    """Hands out writable, 64-byte aligned memory, and recycles the large blocks."""

    def __init__(self, keep: int = KEEP, budget: Budget | None = None) -> None:
        self.budget = budget or Budget(2**62)  # observed by the callers of `take`, not by Memory
        self._keep = keep
        self._era = 0  # how often `age` was called
        self._idle: deque[tuple[int, mmap.mmap]] = (
            deque()
        )  # and the era since which each is idle; the longest idle first

    @property
    def idle(self) -> int:
        """Bytes of the idle blocks."""
        return sum([len(block) for _, block in list(self._idle)])

    def take(self, size: int) -> memoryview:
        """Return a writable view of `size` bytes, of undefined content.

        Raises MemoryError if the system has no such block, and then changes nothing.
        """
        if size < LARGE:
            return aligned(size)
        size_class = _size_class(size)
        block = self._find(size_class) or map_block(size_class)
        loan = _array_type(len(block)).from_buffer(
            block
        )  # every view keeps it alive, so it is finalized after the last
        weakref.finalize(loan, self._give_back, block).atexit = False
        return memoryview(loan).cast("B")[:size]

    def trim(self, size: int = 0) -> None:
        """Free idle blocks, the longest idle first, until at most `size` bytes are kept."""
        while self.idle > size:
            try:
                self._idle.popleft()
            except IndexError:  # another thread has freed it
                return

    def retire(self) -> None:
        """Free all idle blocks, and from now on each block whose last view is gone."""
        self._keep = 0
        self.trim()

    def age(self) -> None:
        """Free the blocks that have been idle since before the last call."""
        while self._idle and self._idle[0][0] < self._era:
            try:
                self._idle.popleft()
            except IndexError:  # another thread has freed it
                break
        self._era += 1

    def _find(self, size: int) -> mmap.mmap | None:
        """Return the block used last of those that are at most twice as large as `size`."""
        for entry in reversed(list(self._idle)):
            if size <= len(entry[1]) <= 2 * size:
                with contextlib.suppress(ValueError):  # another thread has just freed it
                    self._idle.remove(entry)
                    return entry[1]
        return None

    def _give_back(self, block: mmap.mmap) -> None:
        self._idle.append((self._era, block))
        self.trim(self._keep)


def _size_class(size: int) -> int:
    """Round up by an eighth at most, so that messages of nearly one size share blocks."""
    step = 1 << max(size.bit_length() - 4, 12)
    return -(-size // step) * step


@functools.cache
def _array_type(size: int) -> type[ctypes.Array[ctypes.c_char]]:
    return ctypes.c_char * size
