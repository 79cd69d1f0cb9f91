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
from netq.text import printable
from netq.utils import forms
from netq.validate import is_whole

_LONGEST = 100  # characters of a number
_ADDRESS_WORK = 20  # some 12 µs; `dump` itself makes 6 opcodes or more of an address, so as many as fit still load
_LARGEST = 2048  # bits of a part of a fraction, which are reduced
_MAX_DIMS = 64  # of an array: numpy's own limit
_MAX_BYTES = 2**62  # of an array's dimension
# of numbers, texts and dates: no objects, no structures; and no steps of 0, by which numpy divides
_DTYPE = re.compile(
    r"\|(b1|[iu]1|S[1-9][0-9]{0,5})|[<>]([iu][248]|f[248]|c8|c16|U[1-9][0-9]{0,5}|[mM]8(\[([1-9][0-9]{0,3})?[a-zA-Z]{1,2}\])?)"
)
_FRACTION = re.compile(r"-?[0-9]+(/[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Builder:
    """What a message can do with a class. Each function checks what it gets; None: not this way.

    call:  REDUCE: takes the arguments.
    new:   NEWOBJ: takes the arguments.
    build: if the other is None: takes the tuple of arguments, and the state of BUILD.
    opens: the result may be filled (a list, a dict), or get its state (an exception).
    is_atom: the result is a single value, like a number: it holds nothing that the message could change or nest.
    copies: `call` copies what its arguments hold, such as a dict or a shape.
    reads: `call` looks at all bytes of its first argument, so that a message may use these only once.
    work: values whose checks take as long as one call, without those in its arguments.
    """

    name: str
    call: Callable[..., Any] | None = None
    new: Callable[..., Any] | None = None
    build: Callable[[tuple[Any, ...], Any], Any] | None = None
    opens: bool = False
    is_atom: bool = False
    copies: bool = False
    reads: bool = False
    work: int = 0


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

    return Builder(name, call=call, is_atom=True, work=_ADDRESS_WORK)


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
    found = sys.modules.get("numpy")
    if found is None:
        raise Unreadable("a message has an array of numpy, which is not imported here; import it first")
    return found


def is_dtype(text: Any) -> bool:
    """Return whether this is the `str` of a dtype that messages may have."""
    return type(text) is str and _DTYPE.fullmatch(text) is not None


def _named_dtype(text: Any) -> Any:
    if not is_dtype(text):
        raise Unreadable(f"a message has the dtype {_short(text)}; expected one of numbers, bools, texts or dates")
    return _numpy().dtype(text)


def _short(value: Any) -> str:
    return printable(repr(value[:_LONGEST])) if type(value) is str else f"of the type {type(value).__name__}"


def _dtype(name: str, _found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(len(args) == 1, name)
        return _named_dtype(args[0])

    return Builder(name, call=call, is_atom=True)


def _made(name: str, memory: bytes | memoryview, text: Any, shape: Any, axes: Any) -> Any:
    np, dtype = _numpy(), _named_dtype(text)
    _expect(type(shape) is tuple and len(shape) <= _MAX_DIMS and all(is_whole(n, 0, _MAX_BYTES) for n in shape), name)
    _expect(math.prod(shape) * dtype.itemsize == len(memory), name)
    if axes is not None:
        _expect(type(axes) is tuple and all(type(axis) is int for axis in axes), name)
        _expect(sorted(axes) == list(range(len(shape))), name)
    if dtype.kind == "b" and np.frombuffer(memory, "u1").max(initial=0) > 1:
        raise Unreadable("a message has bools that are neither 0 nor 1; computing with them is undefined")
    return forms.array(memory, dtype, shape, axes)


def _array(name: str, _found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(len(args) == 4 and type(args[0]) is memoryview, name)
        return _made(name, *args)

    return Builder(name, call=call, is_atom=True, copies=True, reads=True)


def _scalar(name: str, _found: Any) -> Builder:
    def call(*args: Any) -> Any:
        _expect(len(args) == 2 and type(args[1]) is bytes, name)
        return _made(name, args[1], args[0], (), None)[()]

    return Builder(name, call=call, is_atom=True, copies=True)


_FACTORIES = (int, float, str, bool, list, dict, set)
_ADDRESSES = [f"ipaddress.IPv{version}{kind}" for version in (4, 6) for kind in ("Address", "Network", "Interface")]

# `allow` is asked about the class of what a form of netq makes
ALIASES = {f"{forms.__name__}.array": "numpy.ndarray", f"{forms.__name__}.scalar": "numpy.generic"}

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
    "numpy.dtype": _dtype,
    f"{forms.__name__}.array": _array,
    f"{forms.__name__}.scalar": _scalar,
}
