"""The head of a message between a client and its exchange, and the bytes of the user's data behind it. Pure.

    1 byte kind   1 byte code   2 bytes length of the name   4 bytes detail   8 bytes number   16 bytes id of a client
    name (UTF-8)   zeros in a message of more than 4096 bytes, up to a multiple of 64   data, as the serialiser made it

Numbers are little-endian. The exchange reads heads only, and hands large data on without a copy. What the fields mean
in each kind is in docs/reference/exchange.md.
"""

from __future__ import annotations

import enum
import functools
import struct
import uuid
from typing import NamedTuple

from netq.buffers import ALIGNMENT
from netq.errors import Unreadable
from netq.utils.stream import Stream

_HEAD = struct.Struct("<BBHIQ16s")
_unpack = _HEAD.unpack_from
_PEER = 16  # bytes: where the id of a client begins; the name follows it
_SMALL = 4096  # bytes of a message that has no zeros, at most
_SHORT = 256  # bytes of an id and a name that are remembered, at most
_new = tuple.__new__  # faster than Envelope(...)
_NO_CLIENT = uuid.UUID(int=0)
_ZEROS = bytes(ALIGNMENT)


class EnvelopeKind(enum.IntEnum):
    """The kind of a message."""

    # Requests of a client. Each has a number, which the answer has, too: DONE or REFUSED.
    PUBLISH = 1  # name: the topic
    SUBSCRIBE = 2  # name: the filter
    UNSUBSCRIBE = 3
    PUSH = 4  # name: the queue. Answered when a worker has done the job
    WORK = 5  # name: the queue; detail: how many jobs this client may have at once; 0: no more
    CALL = 6  # name: the service, or peer: the client. Answered by REPLY or REFUSED
    SERVE = 7  # name: the service; detail: how many calls this client takes at once; 0: no more
    RETURN = 8  # number: of the job, which goes to another worker. Not answered
    # To the client.
    PUBLICATION = 16  # name: the topic; peer: who published it
    JOB = 17  # name: the queue; peer: who pushed it; number: of the job; detail: how often it was given before
    REQUEST = 18  # name: the service, "" for a message to this client; peer: who calls; number: of the call
    # Answers, both ways. number: of the request, the job or the call
    DONE = 32  # with code 1: all publications up to this number
    REPLY = 33  # data: the reply
    REFUSED = 34  # code: see Refusal; data: the reason as UTF-8


class Refusal(enum.IntEnum):
    """Why a request is refused."""

    WRONG = 1
    NOT_PERMITTED = 2
    FULL = 3
    ABSENT = 4  # no such service or client, or it has gone
    FAILED = 5  # the worker or the service has raised an exception


class Rejected(Exception):
    """A request cannot be done. The text says why; `code` is for the REFUSED that answers it."""

    def __init__(self, code: Refusal, reason: str) -> None:
        super().__init__(reason)
        self.code = code


UP_TO = 1  # code of DONE


class Envelope(NamedTuple):
    """A message: its head, and the user's data."""

    kind: EnvelopeKind
    number: int = 0
    name: str = ""
    peer: uuid.UUID = _NO_CLIENT
    code: int = 0
    detail: int = 0
    data: Stream | None = None

    def pack(self) -> Stream | bytes:
        """Return the bytes. Those of a small message are copied; large data is not."""
        # The receiver of a small message copies it, too (netq/protocol/receiver.py), so that has no alignment to keep.
        name = self.name.encode()
        head = _HEAD.pack(self.kind, self.code, len(name), self.detail, self.number, self.peer.bytes) + name
        data = [] if self.data is None else self.data.buffers
        if len(head) + (self.data.nbytes if self.data else 0) <= _SMALL:
            return b"".join((head, *data))
        return Stream([head + _ZEROS[: -len(head) % ALIGNMENT], *data])

    @classmethod
    def parse(cls, message: Stream | bytes) -> Envelope:
        """Parse the bytes of a message; its data is a view of them. Raises Unreadable."""
        data: memoryview | bytes
        if type(message) is bytes:
            data = message
        else:
            assert isinstance(message, Stream)
            data = message.buffers[0] if len(message.buffers) == 1 else message.contiguous()
        total = len(data)
        if total < _HEAD.size:
            raise Unreadable(f"{total} bytes; expected a message of netq.exchange, of {_HEAD.size} at least")
        number_of_kind, code, size, detail, number, _ = _unpack(data)
        kind = _KINDS.get(number_of_kind)
        end = _HEAD.size + size
        start = end if total <= _SMALL else end + -end % ALIGNMENT
        if kind is None or total < start:
            raise Unreadable(
                f"kind {number_of_kind}, a name of {size} bytes, {total} bytes in all: no message of netq.exchange"
            )
        try:
            head = bytes(data[_PEER:end])
            peer, name = _known_peer_and_name(head) if len(head) <= _SHORT else _peer_and_name(head)
        except UnicodeDecodeError as error:
            raise Unreadable(f"a name that is not UTF-8: {error}") from error
        return _new(cls, (kind, number, name, peer, code, detail, Stream.of(memoryview(data)[start:])))


def _peer_and_name(head: bytes) -> tuple[uuid.UUID, str]:
    return uuid.UUID(bytes=head[:16]), str(head[16:], "utf-8")


# All publications of one client under one topic have the same: this spares some 2 µs for each.
_known_peer_and_name = functools.lru_cache(1024)(_peer_and_name)
_KINDS = {int(kind): kind for kind in EnvelopeKind}
