"""Frames of the event loops' peers: the length in 8 bytes, then the message. Not a peer itself.

`pieces` splits what is sent, Frames finds the messages in what is received. Shared by the peers whose API reads into a
buffer; asyncio_streams.py and tornado_.py have calls of their own for that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

HEADER = struct.Struct("!Q")
AHEAD = 256 * 1024  # bytes read at once; a larger message gets a buffer of its size, which is used again
SLICE = 1024**2  # bytes written at once: asyncio copies what the socket does not take of one `write`
JOINED = 64 * 1024  # bytes of a message that is copied behind its header, for one write instead of two


def pieces(message: Any) -> Iterator[bytes | memoryview]:
    """Yield what to write for a message: header and message in one piece if it is small, else slices of it."""
    header = HEADER.pack(len(message))
    if len(message) <= JOINED:
        yield b"".join((header, message))
        return
    yield header
    view = memoryview(message)
    for start in range(0, len(view), SLICE):
        yield view[start : start + SLICE]


class Frames:
    """A buffer that is used again, and the messages in it."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(AHEAD))
        self._start = self._stop = 0  # of what was received and not taken yet

    @property
    def full(self) -> bool:
        """Whether nothing can be received before the next `take`."""
        return self._stop == len(self._view)

    def room(self) -> memoryview:
        """Return where the next bytes go: few at once, which are in the processor's cache then."""
        return self._view[self._stop : self._stop + AHEAD]

    def came(self, nbytes: int) -> None:
        """Count bytes that were received into `room()`."""
        if not nbytes:
            raise EOFError("the other side has closed")
        self._stop += nbytes

    def feed(self, data: bytes) -> None:
        """Copy bytes that the API has received by itself."""
        if len(self._view) - self._stop < len(data):
            self._make_room(self._stop - self._start + len(data))
        self._view[self._stop : self._stop + len(data)] = data
        self._stop += len(data)

    def take(self) -> memoryview | None:
        """Return the next message, which is valid until the next call; None if it is not whole: then there is room."""
        start, left, need = self._start, self._stop - self._start, HEADER.size
        if left >= need:
            need += HEADER.unpack_from(self._view, start)[0]
            if left >= need:
                self._start += need
                return self._view[start + HEADER.size : start + need]
        self._make_room(need)
        return None

    def _make_room(self, need: int) -> None:
        """Move what is left to the front of a buffer of `need` bytes at least."""
        left, old = self._stop - self._start, self._view
        if len(old) < need:
            self._view = memoryview(bytearray(need))
        self._view[:left] = old[self._start : self._stop]
        self._start, self._stop = 0, left
