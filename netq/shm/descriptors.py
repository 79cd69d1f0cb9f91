"""The descriptors of the peer's segments, by which we write into them. Owned by a link."""

from __future__ import annotations

import os
from collections.abc import Callable

from netq.errors import ProtocolError
from netq.shm import memfd
from netq.shm.segments import MOST

_AWAITED = 1024  # packets that are read at once for a descriptor: no peer that reads its own has so many bells waiting


class Descriptors:
    """By the numbers that the peer has given them. `listen` takes a packet that may bring one; False: there is none."""

    def __init__(self, listen: Callable[[], bool]) -> None:
        self._listen = listen
        self._table: dict[int, tuple[int | None, int]] = {}  # the descriptor, and the segment's size

    def place(self, number: int, offset: int, size: int) -> int | None:
        """Return the descriptor of a segment, to write `size` bytes there; None if we do not have it.

        Raises ProtocolError if they do not fit, or it was never sent.
        """
        self._await(number)
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
        """Let go of one; raises ProtocolError if it was never sent."""
        self._await(number)
        fd, _ = self._table.pop(number)
        if fd is not None:
            os.close(fd)

    def clear(self) -> None:
        """Let go of all."""
        for number in tuple(self._table):
            self.close(number)

    def _await(self, number: int) -> None:
        """The descriptor of a segment is in the socket before the first record that names it is in the ring."""
        for _ in range(_AWAITED):
            if number in self._table or not self._listen():
                break
        if number not in self._table:
            raise ProtocolError(f"segment {number}, which was never sent")
