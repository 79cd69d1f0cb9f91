"""Moves large `bytes` into pickles and out of them, with one copy in all. Pure; called by PickleSerializer.

pickle's own Pickler hands objects of 64 KiB and more to the `write` of its file as they are, so `Pieces` has them
without a copy. Its Unpickler makes such an object with memory of its own, and lets the `readinto` of its file fill it:
`_Value` does that without the interpreter's lock, and in huge pages, which the system clears four times as fast.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any, TypeVar

from netq.buffers import Buffer, copy, use_huge_pages

LARGE = 64 * 1024  # bytes: what pickle does not copy into a frame
_OPCODES = {bytes: pickle.BINBYTES8, bytearray: pickle.BYTEARRAY8}

Kind = TypeVar("Kind", bytes, bytearray)


class Pieces(list[Buffer]):
    """A pickle, as it is written: opcodes, and large objects themselves."""

    write = list.append


class _Value(io.BytesIO):
    """A pickle of one large object, whose bytes lie elsewhere."""

    def __init__(self, opcode: bytes, content: memoryview) -> None:
        super().__init__(pickle.PROTO + b"\x05" + opcode + struct.pack("<Q", len(content)) + pickle.STOP)
        self._content = content

    def readinto(self, target: Any) -> int:
        use_huge_pages(target)
        copy(target, self._content)
        return len(self._content)


def copied(content: bytes | memoryview, kind: type[Kind]) -> Kind:
    """Return a copy of this type."""
    if len(content) < LARGE:
        return kind(content)
    value: Kind = pickle.Unpickler(_Value(_OPCODES[kind], memoryview(content))).load()
    return value
