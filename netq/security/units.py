"""Divides the bytes of a sealed link into units, and checks each header before memory is taken. Pure.

A link begins with a preface in each direction; then come units: type and length in 4 bytes, then the body. Used by
netq/security/sealed.py, which says before each unit which types may come, and how long they may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from netq.errors import SecurityError
from netq.security.handshake import MAGIC, PREFACE, UNIT, VERSION, Unit, read_unit_header

_SMALL, _LARGE = 1024, 64 * 1024  # bytes received at once: little for idle peers, as there may be many
_FEW = 256  # bytes: a peer that sends no more at once is idle


class Received(NamedTuple):
    """A whole unit. The body lies in the reader's memory, until the next unit is asked for."""

    kind: Unit
    header: bytes
    body: memoryview


class UnitReader:
    """Receive into `buffer()`, then call `advance` with the number of bytes.

    `limits` has the types that may come next, and the most bytes that the body of each may have. The owner replaces it
    as the state of the link changes, also between two units of one `advance`.
    """

    def __init__(self, limits: dict[Unit, int]) -> None:
        self.limits = limits
        self._memory = memoryview(bytearray(_SMALL))
        self._low = self._high = 0  # memory[low:high] is received and not processed
        self._open = False  # the peer's preface is here
        self._wanted = 0  # bytes of the unit at `low`, with its header; 0 while that is incomplete

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes: at least one byte."""
        # Behind a large unit, no more than the header of the next one is received: what comes behind it would have to
        # be copied to the front.
        if self._wanted > _LARGE:
            return self._memory[self._high : self._low + self._wanted + UNIT]
        return self._memory[self._high :]

    def advance(self, n: int) -> Iterator[Received]:
        """Yield the units that n more bytes complete. Raises SecurityError."""
        self._high += n
        if not self._open:
            self._read_preface()
        while self._open and (unit := self._next()) is not None:
            yield unit
        self._make_room(n)

    def reset(self) -> None:
        """Discard what was received."""
        self._memory = memoryview(bytearray(_SMALL))
        self._low = self._high = self._wanted = 0

    def _read_preface(self) -> None:
        begin = bytes(self._memory[: min(self._high, len(PREFACE))])
        if not PREFACE.startswith(begin):
            raise SecurityError(_describe_foreign(begin))
        if len(begin) == len(PREFACE):
            self._low, self._open = len(PREFACE), True

    def _next(self) -> Received | None:
        if self._high - self._low < UNIT:
            return None
        kind, length = read_unit_header(self._memory, self._low)
        limit = self.limits.get(kind)  # type: ignore[call-overload]
        if limit is None or length > limit:
            names = ", ".join(f"{unit.name} of at most {most}" for unit, most in self.limits.items())
            raise SecurityError(f"a unit of type {kind} and {length} bytes on a sealed link; expected {names}")
        self._wanted = UNIT + length
        if self._high - self._low < self._wanted:
            return None
        start, self._low = self._low, self._low + self._wanted
        self._wanted = 0
        header = bytes(self._memory[start : start + UNIT])
        return Received(Unit(kind), header, self._memory[start + UNIT : self._low])

    def _make_room(self, n: int) -> None:
        """Move the incomplete unit to the front, in memory that has room for all of it."""
        size, left, new = len(self._memory), self._high - self._low, len(self._memory)
        if self._wanted + UNIT > size:
            new = self._wanted + UNIT
        elif self._high == size < _LARGE:
            new = _LARGE
        elif not left:
            new = _SMALL if n < _FEW else min(size, _LARGE)
        if new == size and not self._low:
            return
        tail = bytes(self._memory[self._low : self._high])
        if new != size:
            self._memory = memoryview(bytearray(new))
        self._memory[:left] = tail
        self._low, self._high = 0, left


def _describe_foreign(begin: bytes) -> str:
    """Return the error text for bytes that are no preface."""
    if begin.startswith(MAGIC):
        return f"the peer speaks version {begin[len(MAGIC)]} of sealing, this side version {VERSION}"
    if begin[:1] == b"\x16":  # a TLS record of a handshake
        return "the peer speaks TLS, this side does not; give SecurityOptions to both sides, or to neither"
    return (
        "the peer does not seal what it sends, this side does; give SealOptions (CommunicatorOptions.seal) to both "
        "sides, or to neither"
    )
