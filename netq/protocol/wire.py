"""Bytes to frames and back. Mirrors docs/reference/protocol.md line by line. Pure: no socket, no clock, no session.

A frame is a header of 24 bytes and a body. Where a packet of the transport ends says nothing about where a
frame ends, so this one parser serves every transport.
"""

from __future__ import annotations

import enum
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from netq.errors import ProtocolError

VERSION = 1
MAGIC = b"NETQ"
LANES = 16
OVERHEAD = 256  # what a message counts in a lane's window beside its bytes: what it costs to keep account of it
POSITIONS = 2**63  # a lane's positions stay below: some millennia at today's speeds
EPOCHS = 2**32 - 1  # a session's epochs stay below: it begins again only with a server that has forgotten it
REASON = 256  # bytes of text in a FIN, at most

_HEADER = struct.Struct("<BBHIQQ")  # kind, flags, lane, length, number, value
_GREETING = struct.Struct("<4sHH16s16sQQII")  # magic, version, cursors, id, token, and as in Greeting
_CURSOR = struct.Struct("<HHIQQQ")  # lane, 0, 0, held, partial, limit
_LEAST, _MOST = 1024, 64 * 1024  # bytes of frames that are received at once: of an idle peer, of a busy one

_NOTHING = memoryview(b"")

HEADER_SIZE = _HEADER.size
VERSION_SIZE = 8  # bytes of an INI that every version begins with alike


class Kind(enum.IntEnum):
    """The six frames."""

    INI = 1  # who I am, and where to go on from
    MSG = 2  # the next bytes of a message
    ACK = 3  # what I hold, and how far you may send
    DROP = 4  # a message was cancelled: forget what you have of it
    PING = 5  # say something; or, with ANSWER, what was asked for
    FIN = 6  # I am done


class Code(enum.IntEnum):
    """Why a FIN was sent (its `number`)."""

    DONE = 0  # all my messages are acknowledged, and there will be no more
    REFUSED = 1  # not now, or not like this: this link is over, the session is not
    SUPERSEDED = 2  # a newer link has taken the session over
    OVER = 3  # the session is over: our user waits no longer for the rest of it


RESUME = 1  # flag of an INI: I know this session, and go on with it
LEAVING = 1  # flag of a PING: my user has closed, and puts nothing more
ANSWER = 2  # flag of a PING: this answers yours, and repeats its number
FLAGS = {  # that a frame of each kind may have: one at a time
    Kind.INI: (0, RESUME),
    Kind.MSG: (0,),
    Kind.ACK: (0,),
    Kind.DROP: (0,),
    Kind.PING: (0, LEAVING, ANSWER),
    Kind.FIN: (0,),
}
_KINDS = dict(enumerate(Kind, start=1))
_WORDS = frozenset({Kind.INI, Kind.FIN})  # whose bodies are the connection's own


class Frame(NamedTuple):
    """A header, and the body once it is there."""

    kind: Kind
    flags: int = 0
    lane: int = 0
    length: int = 0
    number: int = 0
    value: int = 0
    body: memoryview | bytes = b""

    def header(self) -> bytes:
        """Return the 24 bytes of the header."""
        return _HEADER.pack(self.kind, self.flags, self.lane, self.length, self.number, self.value)

    def whole(self) -> bytes:
        """Return header and body, for frames that carry no message."""
        return self.header() + self.body


def message_header(lane: int, length: int, number: int, size: int) -> bytes:
    """Return the header of a MSG: what `Frame.header` does, for the frame that counts."""
    return _HEADER.pack(2, 0, lane, length, number, size)


class Cursor(NamedTuple):
    """How far one lane has come, seen by its receiver."""

    lane: int
    held: int  # number of the last whole message
    partial: int  # bytes held of the next
    limit: int  # position up to which may be sent


@dataclass(frozen=True)
class Greeting:
    """What an INI says. Sizes are bytes, `heartbeat` is milliseconds, `epoch` counts beginnings of the session."""

    id: uuid.UUID
    token: bytes
    message_size: int
    credit: int
    heartbeat: int
    cursors: tuple[Cursor, ...] = ()
    resume: bool = False
    epoch: int = 0

    def frame(self) -> Frame:
        """Return the INI that says this."""
        head = (MAGIC, VERSION, len(self.cursors), self.id.bytes, self.token)
        body = _GREETING.pack(*head, self.message_size, self.credit, self.heartbeat, self.epoch)
        body += b"".join([_CURSOR.pack(lane, 0, 0, *rest) for lane, *rest in self.cursors])
        return Frame(Kind.INI, RESUME if self.resume else 0, length=len(body), body=body)

    @classmethod
    def read(cls, frame: Frame) -> Greeting:
        """Read the body of an INI; raises ProtocolError."""
        magic, version = struct.unpack_from("<4sH", frame.body)
        if magic != MAGIC:
            raise ProtocolError(f"the peer does not speak netq: its first frame holds {magic!r}, expected {MAGIC!r}")
        if version != VERSION:
            raise ProtocolError(f"the peer speaks version {version} of the protocol, this side version {VERSION}")
        if frame.length < GREETING_SIZE:
            raise ProtocolError(f"an INI of {frame.length} bytes; it has at least {GREETING_SIZE}")
        _, _, count, id, token, message_size, credit, heartbeat, epoch = _GREETING.unpack_from(frame.body)
        if frame.length != GREETING_SIZE + count * _CURSOR.size:
            raise ProtocolError(f"an INI of {frame.length} bytes that says it has {count} cursors")
        for name, value in (("message_size", message_size), ("credit", credit), ("heartbeat", heartbeat)):
            if value == 0:
                raise ProtocolError(f"an INI whose {name} is 0; expected 1 or more")
        if epoch >= EPOCHS:
            raise ProtocolError(f"an INI of epoch {epoch}; expected less than {EPOCHS}")
        cursors = _cursors(frame.body)
        return cls(uuid.UUID(bytes=id), token, message_size, credit, heartbeat, cursors, bool(frame.flags), epoch)


GREETING_SIZE = _GREETING.size
GREETING_LIMIT = GREETING_SIZE + LANES * _CURSOR.size


def _stranger(begin: bytes) -> str:
    if begin[:2] == b"\x16\x03":  # a TLS record of a handshake
        return "the peer speaks TLS, this side does not; give SecurityOptions to both sides, or to neither"
    return f"what comes is no frame of netq, it begins with {begin!r}; is something else at that port?"


def _cursors(body: memoryview | bytes) -> tuple[Cursor, ...]:
    cursors: list[Cursor] = []
    for lane, zero, zeros, *rest in _CURSOR.iter_unpack(body[GREETING_SIZE:]):
        if zero or zeros or lane >= LANES or any(lane <= cursor.lane for cursor in cursors[-1:]):
            raise ProtocolError(f"cursors out of order: lane {lane} after {[cursor.lane for cursor in cursors]}")
        cursors.append(Cursor(lane, *rest))
    return tuple(cursors)


def take_nothing(data: memoryview, low: int, high: int) -> int:
    """Deal with no frame (see Reader)."""
    return low


class Reader:
    """Turn received bytes into frames.

    `buffer()` says where the next bytes should be received, `advance(n)` that n bytes are there. `place` is
    asked at each header, before anything is believed, for the memory of the body, of exactly its length; so
    the bytes of a message land where they stay. It raises ProtocolError for what it does not want.

    Before that, `take(data, low, high)`, which may change at any time, may deal with frames that lie whole in
    `data[low:high]`, as it likes: it returns where the first begins that it does not want.
    """

    def __init__(self, place: Callable[[Frame], memoryview]) -> None:
        self.take: Callable[[memoryview, int, int], int] = take_nothing
        self._place = place
        self._scratch = memoryview(bytearray(_LEAST))
        self._low = self._high = 0  # the part of the scratch that is received and not yet parsed
        self.frame: Frame | None = None  # the frame whose body is arriving
        self._body = _NOTHING
        self._got = 0

    @property
    def partial(self) -> tuple[Frame, int] | None:
        """The frame whose body is arriving, and how many of its bytes are there."""
        return None if self.frame is None else (self.frame, self._got)

    @property
    def empty(self) -> bool:
        """Whether nothing has been received that is not dealt with."""
        return self.frame is None and self._low == self._high

    def reset(self) -> None:
        """Forget what was received: above all the memory of a body that will not be completed."""
        self._low = self._high = self._got = 0
        self.frame, self._body = None, _NOTHING

    def buffer(self) -> memoryview:
        """Return where the next bytes go: at least one byte."""
        if self.frame is not None:
            return self._body[self._got :]
        return self._scratch[self._high :]

    def advance(self, n: int) -> Iterator[Frame]:
        """Yield the frames that n more bytes complete, without those that `take` has dealt with. Each must be dealt
        with before the next is asked for.

        The body of a MSG is where `place` said; it is not in its frame, which would cost small messages most.
        """
        if self.frame is None:
            self._high += n
        else:
            self._got += n
            if self._got < self.frame.length:
                return
            frame, body = self.frame, self._body
            self.frame, self._body = None, _NOTHING
            yield frame._replace(body=body) if frame.kind in _WORDS else frame
        while self._high - self._low >= HEADER_SIZE:
            self._low = self.take(self._scratch, self._low, self._high)
            if self._high - self._low < HEADER_SIZE:
                break
            frame = self._header()
            body = self._place(frame)
            start = self._low + HEADER_SIZE
            stop = self._low = min(start + frame.length, self._high)
            body[: stop - start] = self._scratch[start:stop]
            if stop - start < frame.length:
                self.frame, self._body, self._got = frame, body, stop - start
                break
            yield frame._replace(body=body) if frame.kind in _WORDS else frame
        self._tidy()

    def advance_small(self, n: int, most: int) -> bool:
        """Take n more bytes, as far as `take` does; return whether it can go on when more have come.

        It cannot, if a frame begins that has a body of more than `most` bytes, or is there whole: then `advance(0)`.
        """
        high = self._high + n
        low = self.take(self._scratch, self._low, high)
        if low == high < len(self._scratch):
            self._low = self._high = 0
            return True
        self._low, self._high = low, high
        left = high - low
        if left < HEADER_SIZE:
            self._tidy()
            return True
        length = _HEADER.unpack_from(self._scratch, self._low)[3]
        if length > most or HEADER_SIZE + length <= left:
            return False
        self._tidy()
        return True

    def _header(self) -> Frame:
        kind, flags, lane, length, number, value = _HEADER.unpack_from(self._scratch, self._low)
        if lane >= LANES or flags not in FLAGS.get(kind, ()):
            raise ProtocolError(_stranger(bytes(self._scratch[self._low : self._low + 8])))
        return Frame(_KINDS[kind], flags, lane, length, number, value)

    def _tidy(self) -> None:
        """Move the tail, less than a small frame, to the front; of a larger scratch, if more came than it takes."""
        if self._high == len(self._scratch) < _MOST:
            old, self._scratch = self._scratch, memoryview(bytearray(8 * len(self._scratch)))
        elif self._low == self._high:
            self._low = self._high = 0
            return
        elif not self._low:
            return
        else:
            old = self._scratch
        tail = bytes(old[self._low : self._high])
        self._scratch[: len(tail)] = tail
        self._low, self._high = 0, len(tail)
