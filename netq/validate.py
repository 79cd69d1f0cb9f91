"""Checks of single values. A bool is not a number here, and NaN lies in no range.

`is_…` returns whether a value is valid, for callers with an error text of their own. All others raise InvalidOption
with the text "name: value; expected …". Pure; contains no names of options.
"""

from __future__ import annotations

import functools
import inspect
import math
from typing import TypeGuard

from netq.errors import InvalidOption


def is_whole(value: object, least: float = -math.inf, most: float = math.inf) -> TypeGuard[int]:
    """Return whether this is a whole number from `least` to `most`."""
    return isinstance(value, int) and is_number(value, least, most)


def is_number(value: object, least: float = -math.inf, most: float = math.inf) -> TypeGuard[float]:
    """Return whether this is a number from `least` to `most`."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def is_function(value: object) -> bool:
    """Return whether a call of this gives a result: whether it is no async function or generator, nor wraps one."""
    while isinstance(value, functools.partial):
        value = value.func
    calls = (value, getattr(type(value), "__call__", None))  # noqa: B004
    is_async = any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in calls)
    return callable(value) and not is_async


def expect(right: bool, name: str, value: object, expected: str) -> None:
    """Raise InvalidOption unless the value is right."""
    if not right:
        raise InvalidOption(f"{name}: {value!r}; expected {expected}")


def flag(name: str, value: object) -> None:
    """Raise InvalidOption unless the value is True or False."""
    expect(isinstance(value, bool), name, value, "True or False")


def whole(name: str, value: int, least: int, most: float = math.inf) -> int:
    """Return `value`. Raise InvalidOption unless it is a whole number from `least` to `most`."""
    bounds = f"of {least} or more" if most == math.inf else f"from {least} to {most}"
    expect(is_whole(value, least, most), name, value, f"a whole number {bounds}")
    return value


def seconds(name: str, value: object, least: float, most: float = math.inf) -> None:
    """Raise InvalidOption unless the value is a number from `least` to `most`."""
    expect(is_number(value, least, most), name, value, f"seconds, from {least:g} to {most:g}")
