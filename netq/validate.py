"""Checks of single values. A bool is not a number here, and NaN lies in no range.

`is_…` returns whether a value is valid, for callers with an error text of their own. `check_…` raises the error that
its docstring names. All others raise InvalidOption with the text "name: value; expected …". Pure; contains no names of
options.
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


def check_timeout(name: str, timeout: float | None) -> None:
    """Raise TypeError for a timeout that is no number of seconds, nor None."""
    if timeout is None or (isinstance(timeout, (int, float)) and timeout >= -math.inf):  # which NaN is not
        return
    raise TypeError(f"{name}: timeout={timeout!r}; expected seconds, or None to wait as long as it takes")


def check_not_forked(name: str, forked: bool) -> None:
    """Raise RuntimeError in a fork of the process that has made what is used: `forked` says whether this is one."""
    if forked:
        raise RuntimeError(
            f"{name}: this process is a fork of the one that made this communicator, and has neither its threads "
            "nor its connections; make a new one after the fork, with an id of its own"
        )
