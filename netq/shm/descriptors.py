"""The descriptors of the peer's segments, for direct transfers into them. Owned by a link."""

from __future__ import annotations

import os
from collections.abc import Callable

from netq.errors import ProtocolError
from netq.shm import memfd
from netq.shm.segments import MAX_SEGMENTS

_MAX_PACKETS = (
    1024  # packets read in a row while waiting for a descriptor; a correct peer has fewer WAKEs in the socket
)


class Descriptors:
    """The peer's segments by number. `read_packet` handles one packet of the control socket; False: there was none."""

    def __init__(self, read_packet: Callable[[], bool]) -> None:
        self._read_packet = read_packet
        self._table: dict[int, tuple[int | None, int]] = {}  # descriptor, None if it was not kept; size in bytes

    def find(self, number: int, offset: int, size: int) -> int | None:
        """Return the descriptor to write `size` bytes at `offset` of a segment; None if it was not kept.

        Raises ProtocolError if the segment is too small or was never sent.
        """
        self._await(number)
        fd, segment_size = self._table[number]
        if fd is not None and offset + size > segment_size:
            raise ProtocolError(f"{size} bytes are granted at {offset} of segment {number}, which has {segment_size}")
        return fd

    def add(self, number: int, fd: int | None) -> None:
        """Take ownership of a descriptor; None: the system gave this process none. Raises ProtocolError.

        Where descriptors are scarce it is closed, and the bytes for it go through the ring: half of the descriptors are
        for the user and for clients to come.
        """
        try:
            size = 0 if fd is None else memfd.inspect(fd)
            # Twice the limit of one link: RELEASE of old segments may still be in transit.
            if number in self._table or len(self._table) >= 2 * MAX_SEGMENTS:
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
        """Close one descriptor; raises ProtocolError if it was never sent."""
        self._await(number)
        fd, _ = self._table.pop(number)
        if fd is not None:
            os.close(fd)

    def clear(self) -> None:
        """Close all descriptors."""
        for number in tuple(self._table):
            self.close(number)

    def _await(self, number: int) -> None:
        """Read packets until the segment is known: its SEGMENT is in the socket before a record names it."""
        # The ring and the socket have no common order, so a GRANT may be read before its SEGMENT. A WAKE that is taken
        # here on the way is not lost: this is a turn of the link, which reads the ring until it is empty.
        for _ in range(_MAX_PACKETS):
            if number in self._table or not self._read_packet():
                break
        if number not in self._table:
            raise ProtocolError(f"segment {number}, which was never sent")
