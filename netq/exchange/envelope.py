"""The head of a message between a client and its exchange, and the bytes of the user's data behind it. Pure.

    1 byte kind   1 byte code   2 bytes length of the name   4 bytes detail   8 bytes number   16 bytes id of a client
    name (UTF-8)   zeros, up to a multiple of 64   data, as the user's serialiser has made it

Numbers are little-endian. The exchange reads heads only, and hands data on without a copy. What the fields mean in each
kind is in docs/reference/exchange.md.
"""

from __future__ import annotations

import enum
import struct
import uuid
from typing import NamedTuple

from netq.buffers import ALIGNMENT, Buffer
from netq.errors import Unreadable
from netq.utils.stream import Stream

_HEAD = struct.Struct("<BBHIQ16s")
_NO_CLIENT = uuid.UUID(int=0)
_ZEROS = bytes(ALIGNMENT)


class Kind(enum.IntEnum):
    """What a message is. From the client, to the client, and both."""

    # From the client. Each has a number, with which the exchange answers: DONE or REFUSED.
    PUBLISH = 1  # name: the topic
    SUBSCRIBE = 2  # name: the filter
    UNSUBSCRIBE = 3
    PUSH = 4  # name: the queue. Answered when a worker has done the job
    WORK = 5  # name: the queue; detail: how many jobs this client may have at once; 0: no more
    CALL = 6  # name: the service, or peer: the client. Answered by REPLY or REFUSED
    SERVE = 7  # name: the service; detail: how many calls this client takes at once; 0: no more
    RETURN = 8  # number: of the job, which goes to another worker
    # To the client.
    PUBLICATION = 16  # name: the topic; peer: who published it
    JOB = 17  # name: the queue; peer: who pushed it; number: of the job; detail: how often it was given before
    REQUEST = 18  # name: the service, "" for a message to this client; peer: who calls; number: of the call
    # Answers, both ways. number: what they answer
    DONE = 32  # with code 1: all publications up to this number
    REPLY = 33  # data: the reply
    REFUSED = 34  # code: see Refusal; data: the reason as UTF-8


class Refusal(enum.IntEnum):
    """Why something is refused."""

    WRONG = 1
    NOT_PERMITTED = 2
    FULL = 3
    ABSENT = 4  # no such service or client, or it has gone
    FAILED = 5  # the worker or the service has raised an exception


UP_TO = 1  # code of DONE


class Envelope(NamedTuple):
    """A message."""

    kind: Kind
    number: int = 0
    name: str = ""
    peer: uuid.UUID = _NO_CLIENT
    code: int = 0
    detail: int = 0
    data: Stream | None = None

    def pack(self) -> Stream:
        """Return the bytes. The data is not copied."""
        name = self.name.encode()
        head = _HEAD.pack(self.kind, self.code, len(name), self.detail, self.number, self.peer.bytes) + name
        buffers: list[Buffer] = [head + _ZEROS[: -len(head) % ALIGNMENT]]
        if self.data is not None:
            buffers += self.data.buffers
        return Stream(buffers)

    @classmethod
    def parse(cls, stream: Stream) -> Envelope:
        """Return the message of some bytes; its data is a view. Raises Unreadable."""
        view = stream.contiguous() if len(stream.buffers) != 1 else stream.buffers[0]
        if view.nbytes < _HEAD.size:
            raise Unreadable(f"{view.nbytes} bytes; expected a message of netq.exchange, of {ALIGNMENT} at least")
        kind, code, size, detail, number, peer = _HEAD.unpack_from(view)
        end = _HEAD.size + size
        start = end + -end % ALIGNMENT
        if kind not in _KINDS or view.nbytes < start:
            raise Unreadable(
                f"kind {kind}, a name of {size} bytes, {view.nbytes} bytes in all: no message of netq.exchange"
            )
        try:
            name = str(view[_HEAD.size : end], "utf-8")
        except UnicodeDecodeError as error:
            raise Unreadable(f"a name that is not UTF-8: {error}") from error
        return cls(_KINDS[kind], number, name, uuid.UUID(bytes=peer), code, detail, Stream.of(view[start:]))


_KINDS = {int(kind): kind for kind in Kind}
