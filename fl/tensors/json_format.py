"""Serialises plain values, arrays and tensors as JSON (RFC 8259) and buffers: docs/reference/fl-messages.md.

The layout is that of netq's pickled messages, with a JSON text in place of the pickle: the text refers to the buffers
by number. What JSON has no form for is an object with one reserved key:

    {"$array": [buffer, dtype, shape, strides]}                         an array of numpy; without strides: C order
    {"$tensor" | "$parameter": [buffer, dtype, shape, strides, grad]}   a tensor of torch; strides: null for C order
    {"$bytes": buffer}                                                  bytes
    {"$float": "nan" | "inf" | "-inf"}                                  a float that is not finite

Any other key that begins with $ is written with one $ more. A tuple becomes a list. Arrays are sent from their own
memory, and arrive as views of the message. Loading runs no code of the peer: fl/tensors/serialization.py makes the
arrays and checks their fields. This module needs no numpy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from fl.tensors.storage import Storage
from netq.errors import SerializationError, Unreadable
from netq.text import printable
from netq.utils import large
from netq.utils.stream import Stream, layout, parts

# Of a message. A client does not know its server's model beforehand, so these hold for every model: SCAFFOLD needs as
# much for an update of twice 100,000 tensors with names of 200 bytes. Memory and time follow from the values: 65 bytes
# and 0.2 µs for each at most, so 280 MB and 0.8 s for the most hostile text. The rest of it is bytes, as in an array.
MAX_TEXT = 2**26  # bytes of the JSON text
MAX_VALUES = 2**22  # in it, as `_values` counts
MAX_BUFFERS = 2**18
_MAX_DEPTH = 100  # containers in one another
_LEAVES = frozenset({str, bool, type(None)})
_FLOATS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_TENSORS = {"$array": "numpy", "$tensor": "torch", "$parameter": "parameter"}
_KEYS = {kind: key for key, kind in _TENSORS.items()}
_EXPECTED = "None, bool, int, float, str, bytes, lists, dicts with texts as keys, arrays or tensors of numbers"

_Identifier = tuple[str, Storage, str, Sequence[int], Sequence[int] | None, bool]  # see fl/tensors/serialization.py


class JsonSerializer:
    """`dump` and `load` for `netq.SerializationOptions`.

    dump_tensor: takes any other object; returns the identifier of an array or tensor, a plain value in place of the
                 object, or None to refuse it. Default: refuse all.
    load_tensor: takes an identifier; returns the array or tensor. Default: returns None.
    text:        bytes of JSON in a message that is loaded, at most.
    buffers:     in a message that is loaded, at most.
    """

    def __init__(
        self,
        dump_tensor: Callable[[Any], Any] = lambda _: None,
        load_tensor: Callable[[_Identifier], Any] = lambda _: None,
        text: int = MAX_TEXT,
        buffers: int = MAX_BUFFERS,
    ) -> None:
        self._dump_tensor = dump_tensor
        self._load_tensor = load_tensor
        self._text = text
        self._buffers = buffers

    def dump(self, values: Any) -> Stream:
        """Return the bytes of a message. Arrays must not change until they are sent. Raises SerializationError."""
        writer = _Writer(self._dump_tensor)
        text = json.dumps(writer.plain(values, "the message", 0), separators=(",", ":"))  # ASCII
        for what, count, most in (
            ("arrays and bytes", len(writer.buffers), MAX_BUFFERS),
            ("bytes of JSON", len(text), MAX_TEXT),
            ("values", _values(text), MAX_VALUES),
        ):
            if count > most:
                hint = "put a long list into an array, and many small arrays into one"
                raise SerializationError(f"a message has {count} {what}; expected {most} at most: {hint}")
        return Stream(layout([text.encode()], writer.buffers))

    def load(self, stream: Stream) -> Any:
        """Return the values of a message, whose arrays are writable views of it. Raises Unreadable."""
        try:
            text, *buffers = islice(parts(stream.contiguous()), self._buffers + 2)
            if len(text) > self._text or len(buffers) > self._buffers:
                raise Unreadable(f"expected at most {self._text} bytes of JSON and {self._buffers} buffers")
            content = str(text, "utf-8")
            if _values(content) > MAX_VALUES:
                raise Unreadable(f"expected at most {MAX_VALUES} values")
            reader = _Reader(self._load_tensor, buffers)
            return json.loads(content, object_pairs_hook=reader.object, parse_constant=_refuse)
        except Exception as error:  # bytes that a peer chose may raise anything
            raise Unreadable(f"a message of {stream.nbytes} bytes cannot be loaded: {printable(str(error))}") from error


class _Writer:
    """Makes the plain values of one message, and collects its buffers."""

    def __init__(self, dump_tensor: Callable[[Any], Any]) -> None:
        self._dump_tensor = dump_tensor
        self._storages: dict[int, tuple[int, Storage]] = {}  # number of the buffer, by the Storage's id()
        self.buffers: list[memoryview] = []

    def plain(self, value: Any, name: str, depth: int) -> Any:
        """Return what json.dumps takes. `name`: of the value, for errors."""
        kind = type(value)
        if kind in _LEAVES:
            return value
        if kind is int:
            if not -(2**63) <= value < 2**64:
                raise SerializationError(f"{name}: a whole number of {value.bit_length()} bits; expected 64 at most")
            return value
        if kind is float:
            return value if value - value == 0 else {"$float": str(value)}
        if depth > _MAX_DEPTH:
            raise SerializationError(f"{name}: {_MAX_DEPTH} lists and dicts in one another; expected fewer")
        if kind in (list, tuple):
            return [self.plain(each, name, depth + 1) for each in value]
        if kind in (bytes, bytearray):
            return {"$bytes": self._add(memoryview(value))}
        if isinstance(value, Mapping):
            return {_key(name, key): self.plain(each, repr(key), depth + 1) for key, each in value.items()}
        return self._tensor(value, name)

    def _tensor(self, value: Any, name: str) -> Any:
        identifier = self._dump_tensor(value)
        if identifier is not None and type(identifier) is not tuple:
            return self.plain(identifier, name, 0)
        if identifier is None:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            dtype = f" of dtype {value.dtype}" if hasattr(value, "dtype") else ""
            raise SerializationError(f"{name}: a {kind}{dtype}; expected {_EXPECTED}")
        kind, storage, dtype, shape, strides, grad = identifier
        if id(storage) not in self._storages:
            self._storages[id(storage)] = self._add(memoryview(storage.memory)), storage
        fields = [self._storages[id(storage)][0], dtype, shape, strides, grad]
        return {_KEYS[kind]: fields if kind != "numpy" else fields[: 3 if strides is None else 4]}

    def _add(self, buffer: memoryview) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1


class _Reader:
    """Makes the values of one message from those that json.loads has found."""

    def __init__(self, load_tensor: Callable[[_Identifier], Any], buffers: list[memoryview]) -> None:
        self._load_tensor = load_tensor
        self._buffers = buffers
        self._storages: list[Storage | None] = [None] * len(buffers)
        self._bytes: list[bytes | None] = [None] * len(buffers)  # one copy, however often a peer refers to a buffer

    def object(self, pairs: list[tuple[str, Any]]) -> Any:
        """Return a dict, or the value that an object with a reserved key stands for."""
        values = {}
        for key, value in pairs:
            if key[:1] == "$":
                if key[:2] != "$$":
                    if len(pairs) != 1:
                        raise Unreadable(f"{key!r}: expected it alone in its object")
                    return self._special(key, value)
                key = key[1:]
            values[key] = value
        if len(values) != len(pairs):
            raise Unreadable("an object has a key twice")
        return values

    def _special(self, key: str, value: Any) -> Any:
        if key in _TENSORS:
            return self._tensor(_TENSORS[key], value)
        if key == "$bytes":
            number = self._number(value)
            value = self._bytes[number]
            if value is None:
                value = self._bytes[number] = large.copied(self._buffers[number], bytes)
            return value
        if key == "$float" and type(value) is str and value in _FLOATS:
            return _FLOATS[value]
        raise Unreadable(f"{key!r}: unknown, or its value is not valid")

    def _tensor(self, kind: str, fields: Any) -> Any:
        sizes = (3, 4) if kind == "numpy" else (5,)
        if type(fields) is not list or len(fields) not in sizes:
            raise Unreadable(f"a {kind} tensor: expected {' or '.join(map(str, sizes))} fields")
        number, dtype, shape, strides, grad = fields + [None, False][len(fields) - 3 :]
        storage = self._storages[self._number(number)]
        if storage is None:
            storage = self._storages[number] = Storage(self._buffers[number])
        return self._load_tensor((kind, storage, dtype, _tuple(shape), _tuple(strides), grad))

    def _number(self, value: Any) -> int:
        if type(value) is not int or not 0 <= value < len(self._buffers):
            raise Unreadable(f"the number of a buffer: expected one of {len(self._buffers)}, from 0")
        return value


def _values(text: str) -> int:
    """Return the number of values in a JSON text, or more: commas and brackets in strings count, too.

    An object takes as much memory as three others.
    """
    return text.count(",") + text.count("[") + 3 * text.count("{")


def _tuple(value: Any) -> Any:
    return tuple(value) if type(value) is list else value


def _key(name: str, key: Any) -> str:
    if type(key) is not str:
        raise SerializationError(f"{name}: {key!r:.100} as a key; expected a text")
    return f"${key}" if key[:1] == "$" else key


def _refuse(constant: str) -> Any:
    raise Unreadable(f"{constant}: expected JSON of RFC 8259, which has no such number")
