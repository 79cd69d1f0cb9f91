"""What a message may be made of: plain frozen data that checks itself when it is made, and plain values.

For fl/messages.py and fl/compression/packed.py, whose classes are Validated: a pickle can do no more with one than
call it with its fields. And for fl/server/server.py: what a user gives it to send, or to write down, is to be loaded
again.
"""

from __future__ import annotations

import io
import pickle
import reprlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Self

from fl.errors import InvalidUpdate
from fl.tensors import serialization
from netq.errors import Unreadable


class Validated:
    """Pickled as a call of the class with its fields. For dataclasses that check themselves in `__post_init__`."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make it, checks included."""
        made = super().__new__(cls)
        made.__init__(*args, **kwargs)  # type: ignore[misc]  # checks here too: a pickle may call no more than this
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, each.name) for each in fields(self))  # type: ignore[arg-type]

    def __setstate__(self, state: object) -> None:
        raise Unreadable(f"a message sets the state of a {type(self).__name__}, past its checks")


def unserializable(values: Mapping[str, Any]) -> str:
    """Return which of these values nobody could load again, and why; nothing, if there is none.

    Constants and containers of Python's own, arrays and tensors can be; what pickle needs a name for can not.
    """
    for name, value in values.items():
        try:
            _Checker(io.BytesIO(), 5).dump(value)
        except Exception as error:  # a value of the user's, whose pickling may raise anything
            return f"{name!r}: {error}; expected plain values: numbers, texts, lists, dicts, arrays, tensors"
    return ""


class _Checker(pickle.Pickler):
    """Goes through a value as pickling does, and writes nothing of arrays."""

    def persistent_id(self, obj: Any) -> Any:
        return None if serialization.dump(obj) is None else True

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        raise TypeError(f"has a {kind.__module__}.{kind.__qualname__} in it")


def expect(right: bool, name: str, value: object, expected: str) -> None:
    """Raise InvalidUpdate, with the value as far as it is short, unless a field is right."""
    if not right:
        raise InvalidUpdate(f"{name}: {type(value).__name__} {_shown(value)}; expected {expected}")


def _shown(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # a whole number of too many digits
        return "out of all bounds"
