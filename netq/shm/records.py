"""What two links say to each other in their rings: the stream's bytes, and how some of them come beside. Pure.

A record is 24 bytes, little-endian, `<IIQQ`: kind, segment, offset, size; DATA is followed by `size` bytes. A record is
in the ring whole or not at all.

    kind         fields                 says
    1 DATA       size                   the next bytes of the stream follow
    2 ANNOUNCE   size                   the next bytes of the stream could come beside the ring: where to?
    3 GRANT      segment, offset, size  write the first `size` of them there
    4 INLINE     -                      instead of GRANT: send them in the ring
    5 WROTE      size                   so many more of those granted are there
    6 STOPPED    -                      those granted and not written will come in the ring
    7 RELEASE    segment                it will not be granted any more: close it

After ANNOUNCE, no DATA and no other ANNOUNCE before INLINE or STOPPED is said, or all that was granted is written.
"""

from __future__ import annotations

import enum
import functools
import struct
from typing import NamedTuple

_RECORD = struct.Struct("<IIQQ")

SIZE = _RECORD.size
unpack = _RECORD.unpack_from
data = functools.partial(_RECORD.pack, 1, 0, 0)  # the 24 bytes of DATA, by its size


class Kind(enum.IntEnum):
    """See the table above."""

    DATA = 1
    ANNOUNCE = 2
    GRANT = 3
    INLINE = 4
    WROTE = 5
    STOPPED = 6
    RELEASE = 7


class Record(NamedTuple):
    """One record; `kind` is a number that the peer chose."""

    kind: int
    segment: int = 0
    offset: int = 0
    size: int = 0

    def pack(self) -> bytes:
        """Return its 24 bytes."""
        return _RECORD.pack(*self)
