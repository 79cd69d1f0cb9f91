"""Encodes and parses frames, as docs/reference/protocol.md describes them. Pure: no socket, no clock, no session.

A frame is a header of 24 bytes and a body. Frames need not begin or end where packets of the transport do, so this
parser serves every transport.

To change a frame, see CONTRIBUTING.md, "How to change a frame".
"""

from __future__ import annotations

import enum
import functools
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from netq.buffers import NOTHING
from netq.errors import ProtocolError

VERSION = 1
MAGIC = b"NETQ"
LANES = 16
ANY_LANE = -1  # of a message without order, until its session chooses one of UNORDERED
UNORDERED = range(8, LANES)
OVERHEAD = 256  # bytes that a message counts in its lane's window besides its own: the cost of its bookkeeping
POSITIONS = 2**63  # positions of a lane stay below: enough for some millennia at today's speeds
EPOCHS = 2**32 - 1  # epochs of a session stay below: each server that has forgotten the session uses one
REASON = 256  # bytes of text in a FIN, at most

_HEADER = struct.Struct("<BBHIQQ")  # kind, flags, lane, length, number, value
_GREETING = struct.Struct("<4sHH16s16sQQII")  # magic, version, cursors, id, token, and as in Greeting
_CURSOR = struct.Struct("<HHIQQQ")  # lane, 0, 0, held, partial, limit
_MIN_SCRATCH, _MAX_SCRATCH = 1024, 128 * 1024  # bytes received at once: little for idle peers, as there may be many

HEADER_SIZE = _HEADER.size
VERSION_SIZE = 8  # bytes at the start of an INI that are the same in every version of the protocol


class FrameKind(enum.IntEnum):
    """The six frames."""

    INI = 1  # handshake: who I am, and where to resume
    MSG = 2  # the next bytes of a message
    ACK = 3  # what I hold, and how far you may send
    DROP = 4  # a message was cancelled: discard what you have of it
    PING = 5  # heartbeat; with the flag ANSWER, the answer to one
    FIN = 6  # the end of my messages, or of this link: see Code


class Code(enum.IntEnum):
    """The `number` of a FIN: why it was sent."""

    DONE = 0  # all my messages are acknowledged, and I send no more
    REFUSED = 1  # this link is over, the session is not
    SUPERSEDED = 2  # a newer link has taken the session over
    OVER = 3  # the session is over: our user has closed and does not wait any longer, or another has got the id


RESUME = 1  # flag of an INI: I know this session, and resume it
LEAVING = 1  # flag of a PING: my user has closed, and puts nothing more
ANSWER = 2  # flag of a PING: the answer to yours; it repeats the number of yours
FLAGS = {  # the values that `flags` may have
    FrameKind.INI: (0, RESUME),
    FrameKind.MSG: (0,),
    FrameKind.ACK: (0,),
    FrameKind.DROP: (0,),
    FrameKind.PING: (0, LEAVING, ANSWER),
    FrameKind.FIN: (0,),
}
_KINDS = dict(enumerate(FrameKind, start=1))
_CONTROL = frozenset({FrameKind.INI, FrameKind.FIN})  # the body is for the connection, not part of a message


class Frame(NamedTuple):
    """A header, and the body once it is there."""

    kind: FrameKind
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
        """Return header and body, joined."""
        return self.header() + self.body


def message_header(lane: int, length: int, number: int, size: int) -> bytes:
    """Return the header of a MSG, as `Frame.header` does, but faster: it is the most frequent frame."""
    return _HEADER.pack(2, 0, lane, length, number, size)


def ack_header(lane: int, held: int, limit: int) -> bytes:
    """Return the header of an ACK, which has no body."""
    return _HEADER.pack(3, 0, lane, 0, held, limit)


_frame = functools.partial(tuple.__new__, Frame)  # faster than Frame(...)


class Cursor(NamedTuple):
    """The state of one lane's receiver: from where its sender must continue."""

    lane: int
    held: int  # number of the last whole message
    partial: int  # bytes held of the next message
    limit: int  # position up to which bytes may be sent


@dataclass(frozen=True)
class Greeting:
    """The content of an INI. Sizes are bytes, `heartbeat` is milliseconds, `epoch` counts beginnings of the session."""

    id: uuid.UUID
    token: bytes
    message_size: int
    credit: int
    heartbeat: int
    cursors: tuple[Cursor, ...] = ()
    resume: bool = False
    epoch: int = 0

    def frame(self) -> Frame:
        """Return the INI frame."""
        head = (MAGIC, VERSION, len(self.cursors), self.id.bytes, self.token)
        body = _GREETING.pack(*head, self.message_size, self.credit, self.heartbeat, self.epoch)
        body += b"".join([_CURSOR.pack(lane, 0, 0, *rest) for lane, *rest in self.cursors])
        return Frame(FrameKind.INI, RESUME if self.resume else 0, length=len(body), body=body)

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


def _describe_foreign(begin: bytes) -> str:
    """Return the error text for bytes that are no frame."""
    if begin[:2] == b"\x16\x03":  # a TLS record of a handshake
        return "the peer speaks TLS, this side does not; give SecurityOptions to both sides, or to neither"
    if begin == b"NETQSEAL":
        return (
            "the peer seals what it sends, this side does not; give SealOptions (CommunicatorOptions.seal) to both "
            "sides, or to neither"
        )
    doubt = "is something else at that port, or does something change bytes on the way?"
    return f"what comes is no frame of netq, it begins with {begin!r}; {doubt}"


def _cursors(body: memoryview | bytes) -> tuple[Cursor, ...]:
    cursors: list[Cursor] = []
    for lane, zero, zeros, *rest in _CURSOR.iter_unpack(body[GREETING_SIZE:]):
        if zero or zeros or lane >= LANES or any(lane <= cursor.lane for cursor in cursors[-1:]):
            raise ProtocolError(f"cursors out of order: lane {lane} after {[cursor.lane for cursor in cursors]}")
        cursors.append(Cursor(lane, *rest))
    return tuple(cursors)


def take_nothing(data: memoryview, low: int, high: int) -> int:
    """Take no frame: the `take` of a Reader while there is no short path."""
    return low


class Reader:
    """Parses received bytes into frames, without copying the bodies of large messages.

    Receive the next bytes into `buffer()`, and those behind them into `ahead()`; then call `advance(n)` with their
    number. At each header the reader calls `place`, which checks the frame and returns memory for its body, of exactly
    its length. The rest of the body is then received directly into that memory. `place` raises ProtocolError for an
    illegal frame. Memory that is shorter cuts the frame in two: when it is full, `place` gets the rest as a frame.

    Before that, `take(data, low, high)` may process whole frames that lie in `data[low:high]` (the short path). It
    returns where the first frame begins that it leaves. The attribute may be replaced at any time.
    """

    def __init__(self, place: Callable[[Frame], memoryview]) -> None:
        self.take: Callable[[memoryview, int, int], int] = take_nothing
        self._place = place
        self._scratch = memoryview(bytearray(_MIN_SCRATCH))
        self._low = self._high = 0  # scratch[low:high] is received and not parsed yet
        self.frame: Frame | None = None  # the frame whose body is being received
        self._body = NOTHING
        self._got = 0  # bytes of that body
        self._rest = 0  # bytes behind that body for which `place` is called again

    @property
    def incomplete(self) -> tuple[Frame, int] | None:
        """The frame whose body is being received, and how many bytes of the body are there."""
        return None if self.frame is None else (self.frame, self._got)

    @property
    def empty(self) -> bool:
        """Whether all received bytes have been processed."""
        return self.frame is None and self._low == self._high

    def reset(self) -> None:
        """Discard what was received, and release the memory of an incomplete body."""
        self._low = self._high = self._got = self._rest = 0
        self.frame, self._body = None, NOTHING

    def place_rest(self) -> None:
        """Call `place` again for what has not come of the incomplete body: what has come is a frame of its own."""
        assert self.frame is not None
        frame = self.frame._replace(length=self.frame.length - self._got)
        self.frame, self._body, self._got = frame, self._place(frame), 0

    def trim(self) -> None:
        """Free the memory of a peer that was busy, if all received bytes have been processed."""
        if self.empty and len(self._scratch) > _MIN_SCRATCH:
            self._scratch = memoryview(bytearray(_MIN_SCRATCH))

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes: at least one byte."""
        if self.frame is not None:
            return self._body[self._got :]
        return self._scratch[self._high :]

    def ahead(self) -> memoryview:
        """Return memory for what follows once `buffer()` is full: the begin of the next frame comes with a body."""
        if self.frame is None:
            return NOTHING
        # Behind a large body probably comes another one, which is received where it belongs.
        return self._scratch if self.frame.value <= _MAX_SCRATCH else self._scratch[:_MIN_SCRATCH]

    def advance(self, n: int) -> Iterator[Frame]:
        """Yield the frames that n more bytes complete, except those that `take` has processed.

        Process each frame before you ask for the next. The body of a MSG lies in the memory that `place` returned; the
        frame has no reference to it, because that would slow small messages down.
        """
        rest = 0
        if self.frame is None:
            self._high += n
        else:
            self._got += n
            if self._got < self.frame.length:
                return
            self._high = self._got - self.frame.length  # in `ahead()`
            frame, body, rest = self.frame, self._body, self._rest
            self.frame, self._body, self._rest = None, NOTHING, 0
            yield frame._replace(body=body) if frame.kind in _CONTROL else frame
        while rest or self._high - self._low >= HEADER_SIZE:
            if rest:
                frame, start = frame._replace(length=rest), self._low
            else:
                self._low = self.take(self._scratch, self._low, self._high)
                if self._high - self._low < HEADER_SIZE:
                    break
                frame, start = self._header(), self._low + HEADER_SIZE
            # The begin of the body is in the scratch already and is copied; the rest is received where it belongs.
            body = self._place(frame)
            if rest := frame.length - len(body):
                frame = frame._replace(length=len(body))
            stop = self._low = min(start + frame.length, self._high)
            body[: stop - start] = self._scratch[start:stop]
            if stop - start < frame.length:
                self.frame, self._body, self._got, self._rest = frame, body, stop - start, rest
                break
            yield frame._replace(body=body) if frame.kind in _CONTROL else frame
        scratch = self._scratch
        if self._high == len(scratch) < _MAX_SCRATCH and (self.frame is None or self.frame.value <= _MAX_SCRATCH):
            self._move(memoryview(bytearray(min(8 * len(scratch), _MAX_SCRATCH))))  # not large, and it was filled
        elif self._low == self._high:
            self._low = self._high = 0
        elif self._low:
            self._move(scratch)

    def _header(self) -> Frame:
        kind, flags, lane, length, number, value = _HEADER.unpack_from(self._scratch, self._low)
        if lane >= LANES or flags not in FLAGS.get(kind, ()):
            raise ProtocolError(_describe_foreign(bytes(self._scratch[self._low : self._low + 8])))
        return _frame((_KINDS[kind], flags, lane, length, number, value, b""))

    def _move(self, scratch: memoryview) -> None:
        """Move the unparsed bytes to the front of this memory, and use it from now on."""
        tail = bytes(self._scratch[self._low : self._high])
        scratch[: len(tail)] = tail
        self._scratch, self._low, self._high = scratch, 0, len(tail)
