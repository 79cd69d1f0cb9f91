"""The records that two links exchange in their rings. Pure.

Small parts of the stream go through the ring. A large body takes a direct transfer: the receiver names a segment of its
own memory, and the sender writes there straight from the user's buffers, past the ring.

A record has 24 bytes, little-endian, `<IIQQ`: kind, segment, offset, size. DATA is followed by `size` bytes. The ring
contains whole records only.

    kind         fields                 meaning
    1 DATA       size                   the next bytes of the stream follow
    2 ANNOUNCE   size                   offers a direct transfer of the next bytes of the stream
    3 GRANT      segment, offset, size  accepts it: write the first `size` of these bytes there
    4 INLINE     -                      declines it: send these bytes as DATA
    5 WROTE      size                   that many more of the granted bytes are written
    6 STOPPED    -                      the rest of the granted bytes comes as DATA
    7 RELEASE    segment                the segment is not granted any more: close its descriptor

After ANNOUNCE the sender writes no DATA and no other ANNOUNCE before it has received INLINE, sent STOPPED, or written
everything that was granted.
"""

from __future__ import annotations

import enum
import functools
import struct
from typing import NamedTuple

_RECORD = struct.Struct("<IIQQ")

SIZE = _RECORD.size
unpack = _RECORD.unpack_from
data = functools.partial(_RECORD.pack, 1, 0, 0)  # the 24 bytes of a DATA record, given its size


class Kind(enum.IntEnum):
    """The kinds of records; see the table above."""

    DATA = 1
    ANNOUNCE = 2
    GRANT = 3
    INLINE = 4
    WROTE = 5
    STOPPED = 6
    RELEASE = 7


class Record(NamedTuple):
    """One record. `kind` may be any number that the peer chose."""

    kind: int
    segment: int = 0
    offset: int = 0
    size: int = 0

    def pack(self) -> bytes:
        """Return the 24 bytes of this record."""
        return _RECORD.pack(*self)
