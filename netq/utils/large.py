"""Moves large `bytes` into pickles and out of them, with one copy in all. Pure; called by PickleSerializer.

pickle's own Pickler hands objects of 64 KiB and more to the `write` of its file as they are, so `Pieces` has them
without a copy. Its Unpickler makes such an object with memory of its own, and lets the `readinto` of its file fill it:
`fill` does that without the interpreter's lock, and in huge pages, of which the system has new ones four times as fast.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

from netq.buffers import Buffer, copy, use_huge_pages

LARGE = 64 * 1024  # bytes: what pickle does not copy into a frame


class Pieces(list[Buffer]):
    """A pickle, as it is written: opcodes, and large objects themselves."""

    write = list.append


class _Value(io.BytesIO):
    """A pickle of one large object, whose bytes lie elsewhere."""

    def __init__(self, opcode: bytes, content: memoryview) -> None:
        super().__init__(pickle.PROTO + b"\x05" + opcode + struct.pack("<Q", len(content)) + pickle.STOP)
        self._content = content

    def readinto(self, target: Any) -> int:
        fill(target, self._content)
        return len(self._content)


def bytes_of(content: bytes | memoryview) -> bytes:
    """Return a copy as bytes."""
    if len(content) < LARGE:
        return bytes(content)
    value: bytes = pickle.Unpickler(_Value(pickle.BINBYTES8, memoryview(content))).load()
    return value


def bytearray_of(content: bytes | memoryview) -> bytearray:
    """Return a copy as a bytearray."""
    if len(content) < LARGE:
        return bytearray(content)
    value: bytearray = pickle.Unpickler(_Value(pickle.BYTEARRAY8, memoryview(content))).load()
    return value


def fill(target: memoryview, content: memoryview) -> None:
    """Copy to new memory of the same size."""
    use_huge_pages(target)
    copy(target, content)
