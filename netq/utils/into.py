"""What `get(into=…)` checks before it takes a message: the serialiser, and the buffers. Pure.

The copy itself is a serialiser's `load_into` (netq/utils/stream.py). `into` is Any: numpy's arrays have no static type
that says that they are buffers before Python 3.12.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netq.buffers import bytes_of


def loader(load: Callable[[Any], Any], into: Any) -> Callable[[Any], Any]:
    """Return a function that does what `load` does, but puts the large buffers of the message `into` these.

    Raises TypeError for a serialiser that has no `load_into` and for what is no buffer; ValueError for a buffer that is
    read-only or not contiguous.
    """
    load_into = _load_into(load)
    if load_into is None:
        raise TypeError(
            "get: into needs a serialiser with `load_into`, and SerializationOptions.load is "
            f"{getattr(load, '__qualname__', repr(load))}; expected the `load` of a PickleSerializer, of a "
            "BufferSerializer, or of a class of yours that has a `load_into`, too"
        )
    buffers = destinations(into)
    return lambda stream: load_into(stream, buffers)


def _load_into(load: Callable[[Any], Any]) -> Callable[[Any, list[memoryview]], Any] | None:
    """Return the `load_into` of the serialiser that `load` is a method of; None if it has none.

    A class that overrides `load` alone has none: its `load` may decrypt or verify, and the inherited `load_into` would
    not.
    """
    serializer: Any = getattr(load, "__self__", None)
    name = getattr(load, "__name__", "load")
    for kind in type(serializer).__mro__:
        if "load_into" in vars(kind):
            found: Callable[[Any, list[memoryview]], Any] = serializer.load_into
            return found
        if name in vars(kind):
            break
    return None


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
