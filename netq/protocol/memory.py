"""Allocates the memory of incoming messages, and recycles it by class of size.

Writing to fresh memory costs three to eight times as much as writing to used memory, because the kernel provides it
page by page. So a block whose last view is gone is kept, and handed out again for a message of its class. A large block
is an anonymous mapping: the kernel commits its pages as bytes arrive, not as they are announced.

    made ──take──► lent ──last view is gone──► idle ──beyond the bound, or unused between two calls of `age`──► freed
                     ▲                          │
                     └───────────take───────────┘

Owned by one loop; only that loop calls `take` and `age`. The last view of a block may be freed in any thread, also by
the garbage collector and at the end of the interpreter: there is no lock, and `_give_back` uses no global names. What
two threads do at once may free one block too many.
"""

from __future__ import annotations

import ctypes
import functools
import itertools

from netq.buffers import aligned
from netq.protocol.destination import Destination
from netq.protocol.flow_control import Budget

KEEP = 256 * 1024 * 1024  # bytes of idle blocks, at most, besides one block that is larger than that
# Bytes: smaller blocks are made anew, because a fresh one costs hardly more than a recycled one.
RECYCLED = 32 * 1024


class Memory:
    """Hands out writable, 64-byte aligned memory, and recycles it."""

    def __init__(self, keep: int = KEEP, budget: Budget | None = None) -> None:
        self.budget = budget or Budget(2**62)  # observed by the callers of `take`, not by Memory
        self.destination: Destination | None = None  # lent by a user, for the next large message
        self._keep = keep
        self._classes: dict[int, _Class] = {}  # by size; grows only
        self._giant: _Block | None = None  # larger than `keep`, and idle: the one used last
        self._ticks = itertools.count()  # for `_Block.since`
        self._aged = 0  # tick of the last `age`

    @property
    def idle(self) -> int:
        """Bytes of the idle blocks."""
        giant = self._giant
        kept = sum([blocks.size * len(blocks) for blocks in self._all()])
        return kept + (giant.size if giant else 0)

    def take(self, size: int, *, fresh: bool = False) -> memoryview:
        """Return a writable view of `size` bytes, of undefined content.

        fresh: for a message that may wait for long. A recycled block has all its pages, so a thousand such messages
        would hold a thousand times their size.
        Raises MemoryError if the system has no such block, and then changes nothing.
        """
        if size < RECYCLED:
            return aligned(size)
        size_class = _size_class(size)
        block = None if fresh else self._find(size_class)
        block = block or self._make(size_class)
        loan = block.lend(block.address)  # every view keeps it alive, so its __del__ runs after the last
        loan.block, loan.memory = block, self
        return memoryview(loan).cast("B")[:size]

    def age(self) -> None:
        """Free the blocks that have been idle since before the last call."""
        for blocks in self._all():
            blocks[:] = [block for block in blocks if block.since >= self._aged]
        giant = self._giant
        if giant and giant.since < self._aged:
            self._giant = None
        self._aged = next(self._ticks)

    def _find(self, size: int) -> _Block | None:
        """Return an idle block, which is idle no more."""
        try:
            return self._classes[size].pop()
        except (KeyError, IndexError):
            pass
        giant = self._giant
        if giant is None or giant.size != size:
            return None
        self._giant = None
        return giant

    def _make(self, size: int) -> _Block:
        block = _Block(aligned(size))
        if size not in self._classes:
            self._classes[size] = _Class(size)
        return block

    def _give_back(self, block: _Block) -> None:
        block.since = next(self._ticks)
        if block.size > self._keep:
            self._giant = block
            return
        blocks = self._classes[block.size]
        blocks.append(block)
        if len(blocks) > blocks.most:  # else there is room for it, as there was before
            blocks.most = len(blocks)
            if sum([each.size * each.most for each in self._all()]) > self._keep:
                self._bound()

    def _bound(self) -> None:
        while self._count() > self._keep:
            self._free_oldest()

    def _count(self) -> int:
        """Begin anew with `_Class.most`; return the bytes of the idle blocks that `keep` bounds."""
        # The lengths are noted before they are judged: a block that another thread appends meanwhile is above `most`.
        classes = self._all()
        for blocks in classes:
            blocks.most = len(blocks)
        return sum([blocks.size * blocks.most for blocks in classes])

    def _free_oldest(self) -> None:
        longest = [block for blocks in self._all() for block in blocks[:1]]
        if longest:  # no other thread has freed it
            oldest = min(longest, key=lambda block: block.since)
            del self._classes[oldest.size][:1]

    def _all(self) -> list[_Class]:
        return list(self._classes.values())


class _Block:
    """Memory of one size class."""

    __slots__ = ("address", "lend", "memory", "since", "size")

    def __init__(self, memory: memoryview) -> None:
        self.size = memory.nbytes
        self.memory = memory
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.lend = _loan_type(self.size).from_address  # a third faster than `from_buffer`
        self.since = 0  # tick at which it became idle


class _Class(list[_Block]):
    """The idle blocks of one size, the longest idle first."""

    __slots__ = ("most", "size")

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.most = 0  # idle at once since `keep` was last reached: all classes have room for their most


class _Loan(ctypes.Array[ctypes.c_char]):
    """What the views of a block refer to, from `take` until the last is gone."""

    _type_ = ctypes.c_char
    _length_ = 0
    __slots__ = ("__weakref__", "block", "memory")
    block: _Block
    memory: Memory

    def __del__(self) -> None:
        self.memory._give_back(self.block)


@functools.cache
def _loan_type(size: int) -> type[_Loan]:
    return type("Loan", (_Loan,), {"_length_": size, "__slots__": ()})


def _size_class(size: int) -> int:
    """Round up by an eighth at most, so that messages of nearly one size share blocks."""
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step
