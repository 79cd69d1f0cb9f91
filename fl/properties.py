"""What a client says of itself at the begin of a session: its name, and the properties by which strategies choose.

A client claims them, and the server cannot verify them. Needs no numpy. Called by both sides: by fl/client.py and
edge/config.py for a user's, and by fl/messages.py for a peer's.
"""

from __future__ import annotations

import math
import reprlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from netq.errors import InvalidOption
from netq.validate import expect

Properties: TypeAlias = Mapping[str, bool | int | float | str]
Where: TypeAlias = Mapping[str, Any] | Callable[[Properties], bool]

_MOST = 64  # properties of a client
_LONGEST_NAME = 64  # characters of a client's name, as of a certificate's (X.520, ub-common-name)
_SIMULATED = 2**32  # ids below are numbers, of simulated clients
_LONGEST = 200  # characters of a name or a text
_FORM = f"at most {_MOST} numbers, texts, True or False by name, of {_LONGEST} printable characters at most"


class ClientInfo(NamedTuple):
    """A client, as a server sees it. `properties`: what it says of itself; empty if it has said nothing yet."""

    id: uuid.UUID
    properties: Properties


def checked_name(name: object, whose: str) -> str:
    """Return a client's name. Raises InvalidOption."""
    right = type(name) is str and name.isprintable() and len(name) <= _LONGEST_NAME and name == name.strip()
    expect(right, whose, name, f"a text of {_LONGEST_NAME} printable characters at most, for people")
    return str(name)


def title(id: uuid.UUID, name: str = "") -> str:
    """Return what logs call a client: its name, and its id."""
    number = f"client {id.int}" if id.int < _SIMULATED else str(id)
    return f"{name} ({number})" if name else number


def short_title(id: uuid.UUID, name: str = "") -> str:
    """Return what plots and terminals call a client: its name, or the begin of its id."""
    return name or (f"client {id.int}" if id.int < _SIMULATED else str(id)[:8])


def checked(properties: object, whose: str) -> dict[str, Any]:
    """Return properties as a dict. Raises InvalidOption, with the name of the one that is wrong."""
    right = isinstance(properties, Mapping) and len(properties) <= _MOST
    _expect(right, whose, properties)
    assert isinstance(properties, Mapping)
    for name, value in properties.items():
        _expect(_is_text(name), f"{whose}: a name", name)
        _expect(_is_plain(value), f"{whose}: {name!r}", value)
    return dict(properties)


def matches(where: Where | None, properties: Properties) -> bool:
    """Return whether a client has the wanted properties."""
    if where is None:
        return True
    if callable(where):
        return bool(where(properties))
    return all(name in properties and _is_one_of(properties[name], wanted) for name, wanted in where.items())


def check_where(where: object, whose: str) -> None:
    """Raise InvalidOption unless this selects clients: values, or lists of values, by property; or a function."""
    form = 'values by property, as in {"region": "eu"} or {"region": ["eu", "us"]}, or a function of properties'
    right = where is None or callable(where) or isinstance(where, Mapping)
    expect(right, whose, where, form)
    if isinstance(where, Mapping):
        for name, wanted in where.items():
            values = wanted if isinstance(wanted, list | tuple) else [wanted]
            expect(_is_text(name) and all(map(_is_plain, values)), f"{whose}.{name}", wanted, form)


def _is_one_of(value: Any, wanted: Any) -> bool:
    values: Sequence[Any] = wanted if isinstance(wanted, list | tuple) else [wanted]
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


def _is_text(value: object) -> bool:
    return type(value) is str and value.isprintable() and 0 < len(value) <= _LONGEST


def _is_plain(value: object) -> bool:
    if type(value) is str:  # a message has no subclass, such as an Enum
        return value.isprintable() and len(value) <= _LONGEST
    if isinstance(value, float):
        return math.isfinite(value)
    return type(value) is bool or (type(value) is int and -(2**63) <= value < 2**63)


def _expect(right: bool, what: str, value: object) -> None:
    if not right:
        raise InvalidOption(f"{what}: {reprlib.repr(value)}; expected {_FORM}")
