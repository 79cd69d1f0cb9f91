"""The serialiser of a communicator: the user's functions `dump` and `load`, and what their classes can do beyond. Pure.

netq/core.py and netq/exchange/uplink.py make a Serializer of the options. The functions may be methods of two objects,
or plain functions. If `dump` is a method of a PickleSerializer, its `pack` is used, too. If `load` is a method, the
`load_into`, `plan_into` and `loads_bytes` of its class are used, if it has them (netq/utils/stream.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from netq.buffers import bytes_of
from netq.errors import SerializationError
from netq.utils.stream import PickleSerializer, Stream


class Serializer:
    """Makes messages of objects, and objects of messages: Streams, or bytes for small ones.

    pack: takes an object; returns its message.
    load: takes a message; returns its object.
    runs_code: whether `load` runs the code that a message names.
    """

    pack: Callable[[Any], bytes | Stream]
    load: Callable[[bytes | Stream], Any]

    def __init__(self, dump: Callable[[Any], Any], load: Callable[[Any], Any]) -> None:
        self._dump, self._load = dump, load
        dumps, loads = getattr(dump, "__self__", None), getattr(load, "__self__", None)
        is_pickle = isinstance(dumps, PickleSerializer) and dump == dumps.dump
        self.pack = (is_pickle and _beside(dump, "pack")) or functools.partial(_pack, dump)
        self.load = load if _beside(load, "loads_bytes") else functools.partial(_load, load)
        self.runs_code = isinstance(loads, PickleSerializer) and not loads.is_restricted

    def dump(self, data: Any) -> Stream:
        """Do as `pack`, but always return a Stream."""
        return _stream_of(self._dump(data), self._dump)

    def loader(self, into: Any) -> Loader:
        """Return a function that does what `load` does, but puts the large buffers of the message `into` these.

        Raises TypeError for a serialiser that has no `load_into` and for what is no buffer; ValueError for a buffer
        that is read-only or not contiguous. `into` is Any: numpy's arrays have no static type that says that they are
        buffers before Python 3.12.
        """
        load_into = _beside(self._load, "load_into")
        if load_into is None:
            raise TypeError(
                "get: into needs a serialiser with `load_into`, and SerializationOptions.load is "
                f"{getattr(self._load, '__qualname__', repr(self._load))}; expected the `load` of a PickleSerializer, "
                "of a BufferSerializer, or of a class of yours that has a `load_into`, too"
            )
        return Loader(load_into, destinations(into))


class Loader:
    """Loads a message into buffers of the user.

    plan: takes the size of a message; yields where its bytes belong. None: they are copied.
    """

    def __init__(self, load_into: Callable[..., Any], buffers: list[memoryview]) -> None:
        self._load_into, self._buffers = load_into, buffers
        plan_into = _beside(load_into, "plan_into")
        self.plan = None if plan_into is None else functools.partial(plan_into, buffers=buffers)

    def __call__(self, message: bytes | Stream) -> Any:
        """Return the object of a message."""
        return self._load_into(_stream(message), self._buffers)


def _beside(method: Callable[..., Any], name: str) -> Any:
    """Return the attribute `name` of the object that `method` is of; None if its class has none.

    A class that overrides the method alone has none: its `load` may decrypt or verify, and the inherited `load_into`
    would not.
    """
    owner = getattr(method, "__self__", None)
    for kind in type(owner).__mro__:
        if name in vars(kind):
            return getattr(owner, name)
        if getattr(method, "__name__", "load") in vars(kind):
            break
    return None


def _pack(dump: Callable[[Any], Any], data: Any) -> bytes | Stream:
    dumped = dump(data)
    return dumped if type(dumped) is bytes else _stream_of(dumped, dump)


def _stream_of(dumped: Any, dump: Callable[[Any], Any]) -> Stream:
    """Return what `dump` has returned as a Stream. Raises SerializationError if it is neither a Stream nor a buffer."""
    if isinstance(dumped, Stream):
        return dumped
    try:
        return Stream([dumped])
    except (TypeError, BufferError) as error:
        name = f"{dump.__module__}.{dump.__qualname__}" if hasattr(dump, "__qualname__") else repr(dump)
        raise SerializationError(
            f"put: the serialiser {name} returned a {type(dumped).__name__}; expected bytes, another contiguous "
            f"buffer, or a netq.utils.stream.Stream ({error})"
        ) from error


def _load(load: Callable[[Any], Any], message: bytes | Stream) -> Any:
    return load(_stream(message))


def _stream(message: bytes | Stream) -> Stream:
    return message if isinstance(message, Stream) else Stream.of(memoryview(message))


def destinations(into: Any) -> list[memoryview]:
    """Return each of these buffers as a view of its bytes. Raises TypeError and ValueError, as `loader` does."""
    buffers: Sequence[Any] = into if isinstance(into, (list, tuple)) else [into]
    return [_destination(buffer, number, len(buffers)) for number, buffer in enumerate(buffers)]


def _destination(buffer: Any, number: int, count: int) -> memoryview:
    what = f"get: into, buffer {number} of {count}: a {type(buffer).__name__}"
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError, BufferError) as error:  # numpy raises ValueError for dates
        raise TypeError(
            f"{what}; expected a writable buffer, such as a numpy array, a bytearray or the .numpy() of a torch "
            f"tensor, or a list of them ({error})"
        ) from None
    if view.readonly:
        raise ValueError(f"{what} of {view.nbytes} bytes, which is read-only; expected a writable one")
    if not view.contiguous:
        raise ValueError(f"{what} of {view.nbytes} bytes, which is not contiguous; expected a contiguous one")
    return bytes_of(view)
