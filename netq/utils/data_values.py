"""Values of Python's own classes, and numpy's, in messages: what they are made of is checked here. Pure.

`VALUES` gives, by name, a function of the name and the class; it returns a `Builder`. Used by
netq/utils/data_classes.py for names that are allowed. Nothing is imported: numpy is the module that the program has
imported. Other classes of Python have constructors that were not written for arguments of a peer: `bytes(2**40)`,
`Fraction("1e999999999")`.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from netq.errors import Unreadable
from netq.validate import is_whole

_LONGEST = 100  # characters of a number
_LARGEST = 2048  # bits of a part of a fraction, which are reduced
_MAX_NUMBER = 16  # bytes of a number of numpy: complex128
_MAX_DIMS = 64  # of an array: numpy's own limit
_MAX_BYTES = 2**62  # of an array's dimension
_DTYPE = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|[SU][1-9][0-9]{0,5}")  # numbers and texts: no objects, no structures
_ORDERS = ("<", ">", "|")
_FRACTION = re.compile(r"-?[0-9]+(/[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Builder:
    """What a message can do with a class. Each function checks what it gets; None: not this way.

    call:  REDUCE: takes the arguments.
    new:   NEWOBJ: takes the arguments.
    build: if the other is None: takes the tuple of arguments, and the state of BUILD.
    opens: the result may be filled (a list, a dict), or get its state (an exception).
    is_atom: the result is a single value, like a number: it holds nothing that the message could change or nest.
    copies: `build` copies the bytes in the state, so that a message may use these only once; `call` copies a dict.
    """

    name: str
    call: Callable[..., Any] | None = None
    new: Callable[..., Any] | None = None
    build: Callable[[tuple[Any, ...], Any], Any] | None = None
    opens: bool = False
    is_atom: bool = False
    copies: bool = False


def _expect(right: bool, name: str) -> None:
    if not right:
        raise Unreadable(f"a message has no valid arguments of a {name}")


def _calling(*kinds: type, least: int | None = None) -> Callable[[str, Any], Builder]:
    """Return the function for a class whose arguments have just these types, the last ones of them optional."""
    least = len(kinds) if least is None else least

    def builder(name: str, found: Any) -> Builder:
        def call(*args: Any) -> Any:
            _expect(least <= len(args) <= len(kinds), name)
            for kind, value in zip(kinds, args, strict=False):
                _expect(type(value) is kind and (type(value) is not str or len(value) <= _LONGEST), name)
            return found(*args)

        return Builder(name, call=call, is_atom=True)

    return builder


def _itself(_name: str, found: Any) -> Any:
    return found


def _slice(name: str, found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(len(args) == 3 and {type(value) for value in args} <= {int, type(None)}, name)
        return found(*args)

    return Builder(name, call=call, is_atom=True)


def _address(name: str, found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(len(args) == 1 and (is_whole(args[0], 0) or (type(args[0]) is str and len(args[0]) <= 64)), name)
        return found(args[0])

    return Builder(name, call=call, is_atom=True)


def _uuid(name: str, found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(len(args) == 1 and type(args[0]) is str and len(args[0]) <= 64, name)
        return found(args[0])

    def build(args: tuple[Any, ...], state: Any) -> Any:
        _expect(args == () and type(state) is dict and type(state.get("int")) is int, name)
        return found(int=state["int"])

    return Builder(name, call=call, build=build, is_atom=True)


def _fraction(name: str, found: Any) -> Builder:
    def call(*args: Any) -> Any:
        if len(args) == 1:
            _expect(type(args[0]) is str and len(args[0]) <= _LONGEST and bool(_FRACTION.fullmatch(args[0])), name)
        else:
            _expect(len(args) == 2 and type(args[0]) is type(args[1]) is int, name)
            _expect(max(args[0].bit_length(), args[1].bit_length()) <= _LARGEST, name)
        return found(*args)

    return Builder(name, call=call, is_atom=True)


# Dates: pickle stores the fields as bytes, which the classes do not check


def _date(name: str, found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(len(args) == 1 and type(args[0]) is bytes and len(args[0]) == 4, name)
        high, low, month, day = args[0]
        return found(high * 256 + low, month, day)

    return Builder(name, call=call, is_atom=True)


def _time(name: str, found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(1 <= len(args) <= 2 and type(args[0]) is bytes and len(args[0]) == 6, name)
        hour, minute, second, *micro = args[0]
        return found(hour & 127, minute, second, int.from_bytes(micro), *args[1:], fold=hour >> 7)

    return Builder(name, call=call, is_atom=True)


def _datetime(name: str, found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(1 <= len(args) <= 2 and type(args[0]) is bytes and len(args[0]) == 10, name)
        high, low, month, day, hour, minute, second, *micro = args[0]
        fields = (high * 256 + low, month & 127, day, hour, minute, second, int.from_bytes(micro))
        return found(*fields, *args[1:], fold=month >> 7)

    return Builder(name, call=call, is_atom=True)


def _timezone(name: str, found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(1 <= len(args) <= 2 and all(type(value) is str for value in args[1:]), name)
        return found(*args)

    return Builder(name, call=call, is_atom=True)


# Containers: made empty, and filled by the opcodes of list and dict


def _deque(name: str, found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(args in ((), ((),)) or (len(args) == 2 and args[0] == () and is_whole(args[1], 0)), name)
        return found(*args)

    return Builder(name, call=call, opens=True)


def _ordered_dict(name: str, found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(args == (), name)
        return found()

    return Builder(name, call=call, opens=True)


def _default_dict(name: str, found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(args in ((), (None,)) or (len(args) == 1 and args[0] in _FACTORIES), name)
        return found(*args)

    return Builder(name, call=call, opens=True)


def _counter(name: str, found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(len(args) == 1 and type(args[0]) is dict, name)
        return found(args[0])

    return Builder(name, call=call, copies=True)


# numpy


def _numpy() -> Any:
    return sys.modules["numpy"]


def _dtype(name: str, found: Any) -> Builder:
    def build(args: tuple[Any, ...], state: Any) -> Any:
        _expect(len(args) == 3 and type(args[0]) is str and bool(_DTYPE.fullmatch(args[0])), name)
        _expect(type(state) is tuple and len(state) > 1 and type(state[1]) is str and state[1] in _ORDERS, name)
        made = found(args[0]).newbyteorder(state[1])
        _expect(made.__reduce__()[2] == state, name)
        return made

    return Builder(name, build=build, is_atom=True)


def _array(name: str, memory: Any, dtype: Any, shape: Any, order: str) -> Any:
    np = _numpy()
    _expect(isinstance(dtype, np.dtype) and not dtype.hasobject, name)
    _expect(type(shape) is tuple and len(shape) <= _MAX_DIMS and all(is_whole(n, 0, _MAX_BYTES) for n in shape), name)
    _expect(type(memory) in (bytes, bytearray, memoryview), name)
    view = memoryview(memory)
    _expect(math.prod(shape) * dtype.itemsize == view.nbytes, name)
    return np.ndarray(shape, dtype, view, order=order)


def _from_buffer(name: str, _found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(len(args) == 4 and type(args[3]) is str and args[3] in ("C", "F"), name)
        return _array(name, *args)

    return Builder(name, call=call, is_atom=True)


def _reconstruct(name: str, _found: Any) -> Builder:
    def build(args: tuple[Any, ...], state: Any) -> Any:
        _expect(len(args) == 3 and args[0] is _numpy().ndarray and args[1] == (0,), name)
        _expect(type(state) is tuple and len(state) == 5 and state[0] == 1 and type(state[3]) is bool, name)
        _expect(type(state[4]) is bytes, name)  # as numpy writes it; `copies` counts no other type
        return _array(name, state[4], state[2], state[1], "F" if state[3] else "C").copy(order="K")

    return Builder(name, build=build, copies=True, is_atom=True)


def _scalar(name: str, _found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(len(args) == 2 and type(args[1]) is bytes and len(args[1]) <= _MAX_NUMBER, name)
        return _array(name, args[1], args[0], (), "C")[()]

    return Builder(name, call=call, is_atom=True)


_FACTORIES = (int, float, str, bool, list, dict, set)
_ADDRESSES = [f"ipaddress.IPv{version}{kind}" for version in (4, 6) for kind in ("Address", "Network", "Interface")]
_NUMPY = {"numeric._frombuffer": _from_buffer, "multiarray._reconstruct": _reconstruct, "multiarray.scalar": _scalar}

VALUES: dict[str, Callable[[str, Any], Any]] = {
    **{f"builtins.{kind.__name__}": _itself for kind in _FACTORIES},
    "builtins.complex": _calling(float, float),
    "builtins.range": _calling(int, int, int),
    "builtins.slice": _slice,
    "uuid.UUID": _uuid,
    "decimal.Decimal": _calling(str),
    "fractions.Fraction": _fraction,
    "datetime.date": _date,
    "datetime.time": _time,
    "datetime.datetime": _datetime,
    "datetime.timedelta": _calling(int, int, int),
    "datetime.timezone": _timezone,
    "collections.OrderedDict": _ordered_dict,
    "collections.deque": _deque,
    "collections.defaultdict": _default_dict,
    "collections.Counter": _counter,
    **dict.fromkeys(_ADDRESSES, _address),
    "numpy.ndarray": _itself,
    "numpy.dtype": _dtype,
    **{f"numpy.{core}.{name}": value for core in ("_core", "core") for name, value in _NUMPY.items()},
}
