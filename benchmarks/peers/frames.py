"""Frames of the event loops' peers: the length in 8 bytes, then the message. Not a peer itself.

`pieces` splits a message to send; Frames finds the messages in received bytes. Shared by the peers whose API reads into
a buffer; the APIs of asyncio_streams.py and tornado_.py can wait for a number of bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

HEADER = struct.Struct("!Q")
AHEAD = 256 * 1024  # bytes read at once; a larger message gets a buffer of its size, which is reused
SLICE = 1024**2  # bytes written at once: asyncio copies the rest of a `write` that the socket does not accept
JOINED = 64 * 1024  # bytes: up to this size a message is copied behind its header, for one write instead of two


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
    """A reused buffer, and the messages in it."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(AHEAD))
        self._start = self._stop = 0  # the received bytes that `take` has not returned

    @property
    def full(self) -> bool:
        """Whether the buffer has no space before the next `take`."""
        return self._stop == len(self._view)

    def free_space(self) -> memoryview:
        """Return the memory for the next bytes: at most AHEAD, so that they stay in the processor's cache."""
        return self._view[self._stop : self._stop + AHEAD]

    def received(self, nbytes: int) -> None:
        """Note that so many bytes were received into `free_space()`."""
        if not nbytes:
            raise EOFError("the other side has closed")
        self._stop += nbytes

    def feed(self, data: bytes) -> None:
        """Copy bytes that the API received into its own memory."""
        if len(self._view) - self._stop < len(data):
            self._make_space(self._stop - self._start + len(data))
        self._view[self._stop : self._stop + len(data)] = data
        self._stop += len(data)

    def take(self) -> memoryview | None:
        """Return the next message, valid until the next call. None if it is incomplete; then the buffer has space."""
        start, left, need = self._start, self._stop - self._start, HEADER.size
        if left >= need:
            need += HEADER.unpack_from(self._view, start)[0]
            if left >= need:
                self._start += need
                return self._view[start + HEADER.size : start + need]
        self._make_space(need)
        return None

    def _make_space(self, need: int) -> None:
        """Move the remaining bytes to the start of a buffer with at least `need` bytes."""
        left, old = self._stop - self._start, self._view
        if len(old) < need:
            self._view = memoryview(bytearray(need))
        self._view[:left] = old[self._start : self._stop]
        self._start, self._stop = 0, left
