"""Which types of keys bound the time that a msgpack message takes: a check of a type before its first message.

Python's dicts and sets take quadratic time if a peer chooses keys that meet in the hash table. It cannot with str and
bytes, whose hashes are secret, and with types of few values. It can with all others: tuples and classes with fields
have equal hashes at will, as have UUIDs and Decimals; numbers have different hashes, but known ones, so that one can
choose numbers that are looked for in the same places. The time of few numbers is short.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, inspect

from netq.errors import InvalidOption

MAX_NUMBERS = 1000  # keys of a dict: a message of 4 MiB that is all such dicts takes half a second

# Any is the choice of a program that trusts its peers. The hash of a date is that of bytes.
_BOUNDED = (
    inspect.StrType,
    inspect.BytesType,
    inspect.BoolType,
    inspect.NoneType,
    inspect.EnumType,
    inspect.LiteralType,
    inspect.DateType,
    inspect.AnyType,
)
_NUMBERS = (inspect.IntType, inspect.FloatType)


def check_keys(option: str, type: Any) -> None:
    """Raise InvalidOption, which names the place, if dicts or sets in `type` can take quadratic time."""
    waiting, seen = [(option, inspect.type_info(type))], set[int]()
    while waiting:
        place, found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        keys = _keys(found)
        if keys is not None and (wrong := _first_wrong(keys, getattr(found, "max_length", None))):
            raise InvalidOption(
                f"{place}: a {_name(found)} with keys or members of the type {wrong}, which a peer can choose so that "
                f"a message takes minutes; expected str, bytes, bool, date, an enum or a Literal, or numbers with "
                f"msgspec.Meta(max_length={MAX_NUMBERS}) or less around the {_name(found)}"
            )
        waiting += _inner(place, found)


def _keys(found: inspect.Type) -> inspect.Type | None:
    """Return the type of the keys of a dict, or of the members of a set; None for other types."""
    if isinstance(found, (inspect.SetType, inspect.FrozenSetType)):
        return found.item_type
    return getattr(found, "key_type", None)


def _first_wrong(keys: inspect.Type, max_length: int | None) -> str:
    """Return the name of the first type of keys that a peer can choose badly, "" if there is none."""
    are_few = max_length is not None and max_length <= MAX_NUMBERS
    right = (*_BOUNDED, *_NUMBERS) if are_few else _BOUNDED
    each = keys.types if isinstance(keys, inspect.UnionType) else (keys,)
    return next((_name(one) for one in each if not isinstance(one, right)), "")


def _inner(place: str, found: inspect.Type) -> Iterator[tuple[str, inspect.Type]]:
    """Yield the types in a type, with their places: the description of each type is a Struct of msgspec."""
    if isinstance(found, inspect.Metadata):
        yield place, found.type
    for name in found.__struct_fields__:
        value = getattr(found, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, inspect.Field):
                yield f"{place}.{each.name}", each.type
            elif isinstance(each, inspect.Type):
                yield place, each


def _name(found: Struct) -> str:
    """Return `int` for IntType, and the name of a class."""
    cls = getattr(found, "cls", None)
    return cls.__name__ if cls else type(found).__name__.removesuffix("Type").lower().removeprefix("var")
