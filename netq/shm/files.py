"""The descriptors of the peer's segments, by which we write into them. Owned by a link."""

from __future__ import annotations

import os

from netq.errors import ProtocolError
from netq.shm import memfd
from netq.shm.segments import MOST


class Files:
    """By the numbers that the peer has given them."""

    def __init__(self) -> None:
        self._table: dict[int, tuple[int | None, int]] = {}  # the descriptor, and the segment's size

    def __contains__(self, number: int) -> bool:
        return number in self._table

    def place(self, number: int, offset: int, size: int) -> int | None:
        """Return the descriptor of a segment, to write `size` bytes there; raises ProtocolError if they do not fit."""
        fd, there = self._table[number]
        if fd is not None and offset + size > there:
            raise ProtocolError(f"{size} bytes are granted at {offset} of segment {number}, which has {there}")
        return fd

    def add(self, number: int, fd: int | None) -> None:
        """Own a descriptor; None: the system lets us have no more. Raises ProtocolError if the peer may not send it.

        Where they are scarce it is closed again, and what is meant for it goes through the ring: half of them are the
        user's, and those of clients to come.
        """
        try:
            size = 0 if fd is None else memfd.inspect(fd)
            if number in self._table or len(self._table) >= 2 * MOST:  # those that were released may be under way
                raise ProtocolError(f"segment {number} is sent twice, or is one of too many")
        except ProtocolError:
            if fd is not None:
                os.close(fd)
            raise
        if fd is not None and memfd.scarce(fd):
            os.close(fd)
            fd = None
        self._table[number] = fd, size

    def close(self, number: int) -> None:
        """Let go of one."""
        fd, _ = self._table.pop(number)
        if fd is not None:
            os.close(fd)

    def clear(self) -> None:
        """Let go of all."""
        for number in tuple(self._table):
            self.close(number)
