"""What a message may make of an allowed class. Pure; called by PickleSerializer, for netq/utils/data_pickle.py.

`Classes` turns a name in a message into a `Builder`, whose functions are the only ones that a message can call. It
never imports: it looks into the modules that the program has imported. An instance is made by the constructor of its
class, or by a `__setstate__` that the class defines, so that a message cannot skip what these check:

    enum          by its value
    exception     by its constructor. Attributes in the message must be those that the constructor has set
    dataclass     by its constructor, with the values of its fields by name; so is a class of attrs
    named tuple   by its constructor
    other         by `__setstate__`, or, if it has a `__reduce__`, by its constructor. Both must be functions of the
                  class itself, or of a base that is allowed as well; the constructor must be written in Python. The
                  class must be named itself, not only its module: torch has many whose constructors allocate
    of Python     those of netq/utils/data_values.py, whose arguments are checked there, and the first four kinds

A function is never called and never a value. For a class that fits nowhere, PickleSerializer has `dump` and `load`.
"""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import functools
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

from netq.errors import NotAllowed, SerializationError, Unreadable
from netq.text import printable
from netq.utils import forms
from netq.utils.data_values import ALIASES, VALUES, Builder, is_dtype

_NAME = 100  # characters: a longer name is shortened in errors, because a peer supplied it
_COMBINED = 4096  # combinations of flags: their class keeps each for ever, in a dict of numbers that peers choose
_ADVICE = "Send plain values or arrays of numbers"
_HINT = (
    "make it a dataclass; or define __setstate__ or __reduce__, and allow the class by its own name; or give "
    "PickleSerializer `dump` and `load` for it"
)


class AllowedNames:
    """An `allow` function: the names themselves, and all that a module among them defines."""

    def __init__(self, names: Collection[str]) -> None:
        self._exact = frozenset(names)
        self._prefixes = tuple([f"{name}." for name in names])

    def __call__(self, name: str) -> bool:
        """Return whether a name is allowed."""
        return name in self._exact or name.startswith(self._prefixes)

    def by_itself(self, name: str) -> bool:
        """Return whether a name is allowed, and not only its module."""
        return name in self._exact


class Classes:
    """The classes that a message may name."""

    def __init__(self, allow: Callable[[str], bool]) -> None:
        self._allow = allow
        self._by_itself: Callable[[str], bool] = getattr(allow, "by_itself", allow)
        self._known: dict[str, tuple[Any, Any]] = {}  # by name: what was found, and what may be made of it

    def __call__(self, module: str, name: str) -> Any:
        """Return a Builder; or, for a class that other values have as an argument, that class.

        Raises NotAllowed, or Unreadable if there is nothing with this name.
        """
        full = f"{module}.{name}"
        if not self._allow(allowed := ALIASES.get(full, full)):
            raise _refused(allowed)
        found = _find(module, name)
        known = self._known.get(full)
        if known is None or known[0] is not found:
            known = self._known[full] = (found, self._of(full, found))
        return known[1]

    def _of(self, full: str, found: Any) -> Any:
        if full in VALUES:
            return VALUES[full](full, found)
        if not isinstance(found, type):
            raise NotAllowed(f"a message names {full}, which is a {type(found).__name__}; expected a class of data")
        return _by_kind(full, found) or self._by_protocol(full, found)

    def _by_protocol(self, full: str, found: type) -> Builder:
        """Return the Builder of a class with its own `__setstate__` or `__reduce__`."""
        builder = Builder(full)
        if full.partition(".")[0] not in sys.stdlib_module_names and self._by_itself(full):
            if self._defines(found, "__setstate__") and _inherits(found, "__new__"):
                builder = dataclasses.replace(builder, build=functools.partial(_from_own_state, found))
            reduces = self._defines(found, "__reduce__") or self._defines(found, "__reduce_ex__")
            if reduces and _inherits(found, "__new__", FunctionType) and _inherits(found, "__init__", FunctionType):
                builder = dataclasses.replace(builder, call=found)
        if builder.call is None and builder.build is None:
            raise NotAllowed(f"a message names {full}, a class that cannot be made from data safely; {_HINT}")
        return builder

    def _defines(self, found: type, method: str) -> bool:
        """Whether the class, or a base that is allowed, has this method, written in Python."""
        owner = next(base for base in (*found.__mro__, None) if base is None or method in vars(base))
        if owner is None or not isinstance(vars(owner)[method], FunctionType):
            return False
        return owner is found or bool(self._by_itself(f"{owner.__module__}.{owner.__qualname__}"))


class Sent:
    """Refuses in `put` what `load` of the same serialiser would refuse. One instance for each message."""

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self._kind: type | None = None  # of the last object: the functions that come next are named for it
        self._is_named = False  # no class has come since that object: the next one may be named for it

    def reduce(self, value: Any) -> Any:
        """Do as `forms.reduce`, and as pickle itself. Raises SerializationError, which names the class or the dtype."""
        if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
            self._check(value)
            return forms.reduce(value)
        self._kind = kind = type(value)
        self._is_named = True
        dtype = forms.dtype_of(value)
        if dtype is not None and not is_dtype(dtype.str if forms.is_plain(dtype) else dtype):
            raise SerializationError(
                f"put: a {kind.__module__}.{kind.__qualname__} of dtype {dtype}; a PickleSerializer with `allow` "
                "takes numbers, bools, dates, and texts of a fixed size: convert it, or send its columns one by one"
            )
        form = forms.reduce(value)
        if form is not NotImplemented:
            return form
        own = copyreg.dispatch_table.get(kind)
        form = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if own is None else own(value)
        if isinstance(form, str):  # pickle sends only the name, and what is no class and no function is not found by it
            raise _unloadable(kind, f"a message names {form}, which is a {kind.__name__}; expected a class of data")
        return form

    def _check(self, named: Any) -> None:
        is_value, self._is_named = isinstance(named, type) and not self._is_named, False
        try:
            found = self._classes(named.__module__, named.__qualname__)
            if is_value and type(found) is Builder:
                raise NotAllowed(f"a message has the class {found.name} as a value; expected data")
        except Unreadable as error:
            sent = self._kind if self._kind is not None and not isinstance(named, type) else named
            is_form = named.__module__ == forms.__name__ and named not in (forms.array, forms.scalar)
            why = "`allow` cannot allow it" if is_form else error
            advice = _ADVICE
            if "which `allow` refuses" in str(why) and isinstance(named, type):
                advice += ", or a dataclass that `allow` names, or give PickleSerializer `dump` and `load` for it"
            raise _unloadable(sent, why, advice) from error


def _unloadable(sent: Any, why: object, advice: str = _ADVICE) -> SerializationError:
    return SerializationError(
        f"put: a {sent.__module__}.{sent.__qualname__}, which `load` of this PickleSerializer would refuse: "
        f"{why}. {advice}"
    )


def _find(module: str, name: str) -> Any:
    """Return what a module that is imported defines itself under this name.

    "numpy" must not allow numpy.f2py.os.system, nor "my.Class" its methods. Nothing is called on the way: a module may
    have a `__getattr__`, which imports.
    """
    full = f"{module}.{name}"
    home = sys.modules.get(module)
    if home is None:
        raise Unreadable(f"a message names {_shown(full)}, whose module is not imported here; import it first")
    found: Any = home
    for part in name.split("."):
        if found is not home and not isinstance(found, type):
            raise _refused(full)
        if part not in vars(found):
            raise _refused(full) if "." in name else Unreadable(f"a message names {_shown(full)}, which is not there")
        found = vars(found)[part]
    if not isinstance(found, type if "." in name else (type, FunctionType, BuiltinFunctionType)):
        raise _refused(full)
    if found.__module__ != module or found.__qualname__ != name:
        raise _refused(full)
    return found


def _refused(full: str) -> NotAllowed:
    return NotAllowed(f"a message names {_shown(full)}, which `allow` refuses")


def _shown(full: str) -> str:
    return printable(full if len(full) <= _NAME else f"{full[:_NAME]}…")


def _inherits(found: type, method: str, *kinds: type) -> bool:
    """Whether the method of this class is that of `object`, or of one of these types."""
    inherited = getattr(found, method)
    return inherited is getattr(object, method) or isinstance(inherited, kinds)


def _by_kind(full: str, found: type) -> Builder | None:
    if issubclass(found, enum.Enum):
        return Builder(full, call=functools.partial(_member, found), is_atom=True)
    if issubclass(found, BaseException):
        return Builder(full, call=found, opens=True)
    fields = _fields(found)
    if fields is not None:
        return Builder(full, call=found, build=functools.partial(_from_fields, found, fields))
    if issubclass(found, tuple) and hasattr(found, "_fields"):
        return Builder(full, new=found, call=found)
    return None


def _member(found: type[enum.Enum], value: Any) -> enum.Enum:
    if issubclass(found, enum.Flag) and (type(value) is not int or value & ~_mask(found)):
        raise ValueError(f"{value!r} has bits that {found.__name__} does not name")  # the class would keep it for ever
    if issubclass(found, enum.Flag) and value not in (known := found._value2member_map_) and len(known) > _COMBINED:
        raise ValueError(f"{value!r} is one of more than {_COMBINED} combinations of {found.__name__}; send an int")
    return found(value)


def _mask(found: type[enum.Flag]) -> int:
    return functools.reduce(lambda mask, member: mask | member.value, found.__members__.values(), 0)


def _fields(found: type) -> Mapping[str, str | None] | None:
    """Return the constructor's argument for each field of a dataclass, or of a class of attrs; None for no argument."""
    own = vars(found).get("__setstate__")
    if dataclasses.is_dataclass(found):
        if own is not None and getattr(own, "__module__", None) != "dataclasses":
            return None
        return {field.name: field.name if field.init else None for field in dataclasses.fields(found)}
    if (attributes := getattr(found, "__attrs_attrs__", None)) is not None:
        return {attribute.name: attribute.alias if attribute.init else None for attribute in attributes}
    return None


def _from_fields(found: type, fields: Mapping[str, str | None], args: tuple[Any, ...], state: Any) -> Any:
    """Call the constructor with the state that pickle takes from an instance."""
    if type(state) is tuple and len(state) == 2 and all(part is None or type(part) is dict for part in state):
        state = {**(state[0] or {}), **(state[1] or {})}  # of the instance's __dict__, and of its slots
    elif type(state) is list and len(state) == len(fields):  # of a dataclass that is frozen and has slots
        state = dict(zip(fields, state, strict=True))
    if args or type(state) is not dict:
        raise Unreadable(f"a message has no state of a {found.__name__}")
    values = {}
    for name, value in state.items():
        argument = fields.get(name) if type(name) is str else None
        if argument is None:
            shown = _shown(str(name)) if type(name) is str else type(name).__name__
            raise Unreadable(
                f"a message sets {shown} of a {found.__name__}, whose constructor has no such argument; define a "
                "__reduce__ that returns the class and its arguments"
            )
        values[argument] = value
    return found(**values)


def _from_own_state(found: type, args: tuple[Any, ...], state: Any) -> Any:
    if args:
        raise Unreadable(f"a message makes a {found.__name__} with arguments, and sets its state")
    made: Any = object.__new__(found)
    made.__setstate__(state)
    return made


def set_attributes(made: BaseException | OrderedDict[Any, Any], state: Any) -> None:
    """Set the attributes in a message that cannot harm.

    Those of an exception are its notes; others must be as its constructor has set them. Those of an OrderedDict are not
    names of its class: torch's state_dict has `_metadata`.
    """
    if type(state) is not dict:
        raise Unreadable(f"a message has no state of a {type(made).__name__}")
    attributes = vars(made)
    for name, value in state.items():
        if isinstance(made, OrderedDict):
            right = type(name) is str and not name.startswith("__") and not hasattr(OrderedDict, name)
        elif name == "__notes__":
            right = type(value) is list and set(map(type, value)) <= {str}
        else:
            right = name in attributes and type(attributes[name]) is type(value) and attributes[name] == value
        if not right:
            raise Unreadable(
                f"a message sets an attribute of a {type(made).__name__} that its constructor does not set so; define "
                "a __reduce__ that returns the class and its arguments"
            )
        attributes[name] = value
