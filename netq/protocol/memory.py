"""The memory of incoming messages: where it comes from, and where it goes back to.

Filling fresh memory costs some ten times what filling used memory costs (the kernel hands it out page by
page), so large blocks are kept when their last view is gone and handed out again. A block is an anonymous
mapping: the kernel commits its pages as bytes arrive, not as they are announced.

Owned by one loop, which alone calls `take` and `trim`. The last view of a block may die in any thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import weakref
from collections import deque
from collections.abc import Callable

from netq.buffers import LARGE, aligned, map_block
from netq.protocol.flow_control import Budget

KEEP = 256 * 1024 * 1024  # bytes of idle blocks that are kept at most


class Memory:
    """Hands out writable, 64-byte aligned memory, and recycles the large blocks."""

    def __init__(
        self, keep: int = KEEP, budget: Budget | None = None, mapping: Callable[[int], mmap.mmap] | None = None
    ) -> None:
        self.budget = budget or Budget(2**62)  # how much may be asked for; those who ask observe it
        self._keep = keep
        self._map = mapping or map_block  # makes a large block; raises MemoryError
        self._era = 0  # how often `age` was called
        self._idle: deque[tuple[int, mmap.mmap]] = deque()  # since which era; the longest idle first

    @property
    def idle(self) -> int:
        """Bytes of idle blocks that wait to be used again."""
        return sum([len(block) for _, block in list(self._idle)])

    def take(self, size: int) -> memoryview:
        """Return a writable view of `size` bytes, of undefined content.

        Raises MemoryError if the system has no such block; nothing is lost by that.
        """
        if size < LARGE:
            return aligned(size)
        size_class = _size_class(size)
        block = self._find(size_class) or self._map(size_class)
        loan = _array_type(len(block)).from_buffer(block)  # every view keeps it alive: its end is their end
        weakref.finalize(loan, self._give_back, block).atexit = False
        return memoryview(loan).cast("B")[:size]

    def trim(self, size: int = 0) -> None:
        """Let idle blocks go, the longest idle first, until no more than `size` bytes are kept."""
        while self.idle > size:
            try:
                self._idle.popleft()
            except IndexError:  # another thread was faster
                return

    def retire(self) -> None:
        """Keep no idle block any more, nor any that comes back."""
        self._keep = 0
        self.trim()

    def age(self) -> None:
        """Let the blocks go that have been idle since before the last call."""
        while self._idle and self._idle[0][0] < self._era:
            try:
                self._idle.popleft()
            except IndexError:  # another thread was faster
                break
        self._era += 1

    def _find(self, size: int) -> mmap.mmap | None:
        """The block used last, of those that `size` fills by half at least."""
        for entry in reversed(list(self._idle)):
            if size <= len(entry[1]) <= 2 * size:
                with contextlib.suppress(ValueError):  # another thread may just have let it go
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
