"""Serialises messages of protocol buffers: docs/reference/serialisers.md. Needs protobuf (extra `protobuf`)."""

from __future__ import annotations

from netq.errors import SerializationError, Unreadable
from netq.text import printable
from netq.utils.stream import Stream
from netq.validate import expect
from netq.version import DISTRIBUTION

try:
    from google.protobuf.message import Message
except ImportError as error:
    raise ImportError(f"netq.utils.protobuf needs protobuf: pip install '{DISTRIBUTION}[protobuf]'") from error

MAX_CLASSES = 256  # the tag is one byte


class ProtobufSerializer:
    """Messages of one or several classes that protoc has made.

    A message of a single class has the bytes that protobuf defines. With several classes one byte comes before them:
    the number of the class, from 0, in the order of `classes`. Both sides need the same classes in the same order; add
    new ones at the end.
    """

    def __init__(self, *classes: type[Message]) -> None:
        expected = f"1 to {MAX_CLASSES} different classes of protobuf messages"
        right = all(isinstance(kind, type) and issubclass(kind, Message) for kind in classes)
        right = right and 1 <= len(set(classes)) == len(classes) <= MAX_CLASSES
        expect(right, "ProtobufSerializer", classes, expected)
        self._classes = classes
        self._tags = {kind: bytes([number]) if len(classes) > 1 else b"" for number, kind in enumerate(classes)}

    def dump(self, data: Message) -> bytes:
        """Return the bytes of a message. Raises SerializationError for another class, or if a required field lacks."""
        tag = self._tags.get(type(data))
        if tag is None:
            taken = " or ".join([_name(kind) for kind in self._classes])
            raise SerializationError(f"put: a {_name(type(data))}; ProtobufSerializer takes {taken}")
        try:
            body: bytes = data.SerializeToString()
            return tag + body
        except Exception as error:
            raise SerializationError(f"put: a {_name(type(data))} cannot be serialised: {error}") from error

    def load(self, stream: Stream) -> Message:
        """Return the message of a stream. Raises Unreadable."""
        data = stream.buffers[0] if len(stream.buffers) == 1 else stream.contiguous()
        kind, start = self._classes[0], 0
        if len(self._classes) > 1:
            start, number = 1, data[0] if data.nbytes else len(self._classes)
            if number >= len(self._classes):
                raise Unreadable(
                    f"a message of {data.nbytes} bytes begins with no number of a class from 0 to "
                    f"{len(self._classes) - 1}: does the peer have the same classes in its ProtobufSerializer?"
                )
            kind = self._classes[number]
        try:
            return kind.FromString(data[start:])
        except Exception as error:  # DecodeError, and others of older versions
            raise Unreadable(
                f"a message of {data.nbytes} bytes is no {_name(kind)}: {printable(str(error))}"
            ) from error


def _name(kind: type) -> str:
    descriptor = getattr(kind, "DESCRIPTOR", None)
    return descriptor.full_name if descriptor is not None else f"{kind.__module__}.{kind.__qualname__}"
