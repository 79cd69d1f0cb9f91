"""Serialises plain values and typed records as msgpack, and arrays as buffers: docs/reference/serialisers.md.

The layout is that of netq's pickled messages, with msgpack in place of the pickle. Two extension types of msgpack refer
to the buffers by number: `ARRAY` and `BUFFER`. Arrays are sent from their own memory, and arrive as views of the
message. Loading runs no code of the peer. Needs msgspec (extra `msgpack`); arrays need numpy.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

from netq.errors import InvalidOption, SerializationError, Unreadable
from netq.text import printable
from netq.utils.stream import Stream, layout, parts
from netq.validate import whole
from netq.version import DISTRIBUTION

try:
    import msgspec
except ImportError as error:
    raise ImportError(f"netq.utils.msgpack needs msgspec: pip install '{DISTRIBUTION}[msgpack]'") from error

from netq.utils.msgpack_keys import check_keys

ARRAY, BUFFER = 1, 2  # codes of the extension types
LIMIT = 2**22  # bytes of msgpack; its values take up to 110 times as much memory
MAX_BUFFERS = 2**16  # in a message
_MAX_DIMS = 64  # of an array: numpy's limit
_SIZES = ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
DTYPES = frozenset({"|b1", "|i1", "|u1", *[order + size for order in "<>" for size in _SIZES]})
_EXPECTED = (
    "None, bool, int, float, str, bytes, dates and times, lists, dicts, dataclasses, msgspec.Struct, "
    "pickle.PickleBuffer, and arrays of numbers"
)

_Whole = Annotated[int, msgspec.Meta(ge=0)]
_ARRAYS = msgspec.msgpack.Decoder(tuple[_Whole, str, Annotated[tuple[_Whole, ...], msgspec.Meta(max_length=_MAX_DIMS)]])
_BUFFERS = msgspec.msgpack.Decoder(_Whole)


class MsgpackSerializer:
    """Msgpack, with arrays of numpy and each `pickle.PickleBuffer` out of band.

    Messages are data: loading imports nothing, and calls nothing but the constructors of `type`.

    type:  what `load` returns, and checks the message against: a dataclass, a msgspec.Struct, a TypedDict, list[int] …
           In it `numpy.ndarray` stands for an array. Default: any values, which arrive as dicts, lists, numbers … Pass
           a type without Any if you do not trust your peers (docs/explanation/security.md). Keys of dicts and members
           of sets must be str, bytes or of few values: others raise InvalidOption (netq/utils/msgpack_keys.py).
    limit: bytes of msgpack in a message, for `dump` and `load`. Arrays and buffers are not counted.
    """

    def __init__(self, type: Any = Any, limit: int = LIMIT) -> None:
        self._limit = whole("MsgpackSerializer.limit", limit, 1, 2**32)
        self._type = type
        try:
            self._prepare()
        except (TypeError, NameError) as error:  # NameError: an annotation that names nothing
            raise InvalidOption(f"MsgpackSerializer.type: {type!r}; expected a type of msgspec ({error})") from error
        check_keys("MsgpackSerializer.type", type)

    def _prepare(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(self._type, ext_hook=_Reader(()).value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_decoder"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def dump(self, data: Any) -> Stream | bytes:
        """Return the bytes of `data`. Arrays must not change until the future is done. Raises SerializationError."""
        writer = _Writer()
        try:
            head = msgspec.msgpack.encode(data, enc_hook=writer.value)
        except Exception as error:  # a damaged object, such as one that contains itself, may raise anything
            raise SerializationError(f"put: {writer.describe(data, error)}") from error
        if len(head) > self._limit:
            raise SerializationError(
                f"put: {len(head)} bytes of msgpack; expected {self._limit} at most: send long lists as arrays, large "
                "bytes as pickle.PickleBuffer(…), or raise MsgpackSerializer.limit on both sides"
            )
        if len(writer.buffers) > MAX_BUFFERS:
            raise SerializationError(f"put: {len(writer.buffers)} arrays and buffers; expected {MAX_BUFFERS} at most")
        packed = layout([head], writer.buffers)
        return Stream(packed) if writer.buffers else b"".join(packed)

    def load(self, stream: Stream) -> Any:
        """Return the values of a stream. Arrays are writable, aligned views of the message. Raises Unreadable."""
        try:
            view = stream.buffers[0] if len(stream.buffers) == 1 else stream.contiguous()
            head, *buffers = islice(parts(view), MAX_BUFFERS + 2)
            if len(head) > self._limit or len(buffers) > MAX_BUFFERS:
                raise Unreadable(
                    f"{len(head)} bytes of msgpack and {len(buffers)} buffers; expected at most {self._limit} "
                    f"(MsgpackSerializer.limit) and {MAX_BUFFERS}"
                )
            if not buffers:
                return self._decoder.decode(head)
            if view.readonly:
                head, *buffers = parts(stream.contiguous())
            return msgspec.msgpack.decode(head, type=self._type, ext_hook=_Reader(buffers).value)
        except Exception as error:  # bytes that a peer chose may raise anything
            why = printable(str(error) or type(error).__name__)
            raise Unreadable(f"a message of {stream.nbytes} bytes cannot be loaded: {why}") from error


class _Writer:
    """Makes extension values of what msgspec does not know, and collects the buffers of a message."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []
        self._refused: tuple[Any, ...] = ()

    def value(self, value: Any) -> Any:
        """Return what msgspec encodes in place of `value`."""
        if isinstance(value, pickle.PickleBuffer):
            return msgspec.msgpack.Ext(BUFFER, msgspec.msgpack.encode(self._add(value.raw())))
        numpy = sys.modules.get("numpy")
        if numpy is not None and type(value) is numpy.ndarray and value.dtype.str in DTYPES:
            number = self._add(memoryview(numpy.ascontiguousarray(value)))
            return msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode((number, value.dtype.str, value.shape)))
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.str in DTYPES:
            number = value.item()
            if isinstance(number, (bool, int, float)):
                return number
        self._refused = (value,)
        raise TypeError

    def _add(self, buffer: memoryview) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def describe(self, data: Any, error: Exception) -> str:
        """Return what cannot be encoded, and where in `data` it is."""
        if not self._refused:
            return f"a {_name(type(data))} cannot be sent as msgpack: {error}"
        (value,) = self._refused
        dtype = f" of dtype {value.dtype}" if hasattr(value, "dtype") else ""
        place = next((path for path, each in _walk(data) if each is value), "data")
        return f"{place}: a {_name(type(value))}{dtype}; MsgpackSerializer takes {_EXPECTED}"


class _Reader:
    """Makes the values of extension types, as views of the buffers of one message."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._buffers = buffers
        self._are_bools = bytearray(len(buffers))  # 1: a buffer that was found to hold 0 and 1 only

    def value(self, code: int, data: memoryview) -> Any:
        """Return the array or the buffer of an extension value."""
        if code == BUFFER:
            return pickle.PickleBuffer(self._buffer(_BUFFERS.decode(data)))
        if code != ARRAY:
            raise Unreadable(f"an extension type {code}; expected {ARRAY} or {BUFFER}")
        number, name, shape = _ARRAYS.decode(data)
        made = _array(self._buffer(number), name, shape)
        if made.dtype.kind == "b" and not self._are_bools[number]:  # once, however often a peer refers to it
            if made.view("u1").max(initial=0) > 1:
                raise Unreadable("an array of bools; expected bytes of 0 and 1")
            self._are_bools[number] = 1
        return made

    def _buffer(self, number: int) -> memoryview:
        if number >= len(self._buffers):
            raise Unreadable(f"the buffer {number}; the message has {len(self._buffers)}")
        return self._buffers[number]


def _array(buffer: memoryview, name: str, shape: tuple[int, ...]) -> Any:
    try:
        import numpy
    except ImportError as error:
        raise Unreadable(f"an array, for which numpy is missing: pip install '{DISTRIBUTION}[fl]'") from error
    if name not in DTYPES:
        raise Unreadable(f"an array of dtype {name!r}; expected a number of numpy, as '<f4'")
    dtype = numpy.dtype(name)
    if buffer.nbytes != math.prod(shape) * dtype.itemsize:
        raise Unreadable(f"an array {name!r} of shape {shape} has {buffer.nbytes} bytes")
    return numpy.ndarray(shape, dtype, buffer)


def _walk(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield all values in `data`, each once, with its place, as `data.weights[3]`."""
    waiting, seen = [("data", data)], set[int]()
    while waiting:
        place, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield place, value
        if isinstance(value, Mapping):
            waiting += [(f"{place}[{key!r:.50}]", each) for key, each in value.items()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            waiting += [(f"{place}[{index}]", each) for index, each in enumerate(value)]
        elif isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
            names: Iterable[str] = getattr(value, "__struct_fields__", ()) or getattr(value, "__dataclass_fields__", ())
            waiting += [(f"{place}.{name}", getattr(value, name, None)) for name in names]


def _name(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
