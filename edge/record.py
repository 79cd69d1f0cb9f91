"""The record of a finished task: the reply, and what the training functions and the compression keep after it.

Written by the child process (edge/worker.py), into a file that the agent gives it; read by the agent and by the next
child. One file holds both parts, so that a rename replaces both at once: a device that loses power has the reply and
the state of the same task. Needs no numpy.

    8 bytes "NETQREC1"   4 bytes CRC-32 of all that follows   4 bytes length of the key
    8 bytes length of the reply   8 bytes of its arrays       8 bytes length of the state
    key (UTF-8), reply, state: each begins at a multiple of 64

Numbers are little-endian. The CRC finds a file that was cut off or damaged; it is no protection against an attacker,
who would need the right to write to the state folder.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple, Self

from netq.buffers import ALIGNMENT, Buffer
from netq.utils.stream import Stream

log = logging.getLogger("edge")

_MAGIC = b"NETQREC1"
_START = struct.Struct("<8sI")  # the magic, the CRC of the rest
_SIZES = struct.Struct("<IQQQ")
_HEAD = _START.size + _SIZES.size


class Damaged(ValueError):
    """These bytes are no whole record."""


class Record(NamedTuple):
    """A record. The views are of the file, as a mapping that nothing is written to."""

    key: str  # which task it is
    reply: memoryview
    size: int  # bytes of the reply's arrays
    state: memoryview  # empty if there is none

    @classmethod
    def read(cls, fd: int, *, check: bool) -> Self:
        """Return the record in a file. Raises Damaged, OSError.

        check: whether to read it all, and compare the CRC.
        """
        size = os.fstat(fd).st_size
        if size < _HEAD:
            raise Damaged(f"it has {size} bytes; expected {_HEAD} at least")
        view = memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ))
        magic, crc = _START.unpack_from(view)
        if magic != _MAGIC:
            raise Damaged(f"it begins with {magic!r}; expected {_MAGIC!r}")
        key_size, reply_size, arrays, state_size = _SIZES.unpack_from(view, _START.size)
        reply = _aligned(_HEAD + key_size)
        state = _aligned(reply + reply_size)
        if state + state_size != size:
            raise Damaged(f"it has {size} bytes; expected {state + state_size}: it was cut off")
        if check and zlib.crc32(view[_START.size :]) != crc:
            raise Damaged("its bytes have changed since they were written")
        key = bytes(view[_HEAD : _HEAD + key_size]).decode(errors="replace")
        return cls(key, view[reply : reply + reply_size], arrays, view[state:])


def write(fd: int, key: str, reply: Stream, size: int, state: Stream) -> None:
    """Write a record, in place of what the file holds. Raises OSError. Does not wait for the disk."""
    name = key.encode()
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(bytes(_START.size))
        crc = 0
        for part in _parts(_SIZES.pack(len(name), reply.nbytes, size, state.nbytes) + name, reply, state):
            crc = zlib.crc32(part, crc)
            file.write(part)
        file.seek(0)
        file.write(_START.pack(_MAGIC, crc))


def write_somewhere(fd: int, key: str, reply: Stream, size: int, state: Stream) -> list[int]:
    """Write a record. If that fails, because the disk is full, write it to memory, and return its descriptor."""
    try:
        write(fd, key, reply, size, state)
    except OSError as error:
        log.debug("the record cannot be written, and stays in memory: %s", error.strerror)  # the agent warns of it
        memory = os.memfd_create("netq-edge", os.MFD_CLOEXEC)
        write(memory, key, reply, size, state)
        return [memory]
    return []


def _parts(head: bytes, reply: Stream, state: Stream) -> Iterable[Buffer]:
    end = _START.size + len(head)
    yield head
    yield bytes(_aligned(end) - end)
    yield from reply.buffers
    yield bytes(_aligned(reply.nbytes) - reply.nbytes)
    yield from state.buffers


def _aligned(offset: int) -> int:
    return offset + -offset % ALIGNMENT
