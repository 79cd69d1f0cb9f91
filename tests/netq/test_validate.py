"""The checks of single values, and the texts of their errors."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from netq.errors import InvalidOption
from netq.validate import expect, flag, is_function, is_number, is_whole, seconds, whole

NAN, INF = math.nan, math.inf


class Ports(enum.IntEnum):
    """A whole number of a class of its own."""

    WEB = 80


@pytest.mark.parametrize("value", [0, -1, 80, Ports.WEB, 10**400, -(2**63)])
def test_whole_numbers(value: Any) -> None:
    assert is_whole(value)
    assert is_number(value)
    assert is_whole(value, value, value)
    assert not is_whole(value, value + 1)
    assert not is_whole(value, most=value - 1)


@pytest.mark.parametrize("value", [0.0, -0.5, 1e300, INF, -INF, np.float64(2)])
def test_other_numbers(value: Any) -> None:
    assert is_number(value)
    assert is_number(value, value, value)
    assert not is_whole(value)


@pytest.mark.parametrize("value", [True, False, NAN, None, "1", b"1", 1j, np.int64(1), np.float32(1), np.bool_(1), [1]])
def test_values_that_are_no_number(value: Any) -> None:
    assert not is_number(value)
    assert not is_number(value, 0, 10)
    assert not is_whole(value)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: expect(False, "Door.key", None, "a key"), "Door.key: None; expected a key"),
        (lambda: flag("Door.open", 1), "Door.open: 1; expected True or False"),
        (lambda: whole("Door.locks", True, 1), "Door.locks: True; expected a whole number of 1 or more"),
        (lambda: whole("Door.locks", 9, 1, 8), "Door.locks: 9; expected a whole number from 1 to 8"),
        (lambda: seconds("Door.shut", NAN, 0), "Door.shut: nan; expected seconds, from 0 to inf"),
        (lambda: seconds("Door.shut", 11, 0.001, 1e1), "Door.shut: 11; expected seconds, from 0.001 to 10"),
    ],
)
def test_error_has_name_value_and_expectation(call: Callable[[], object], text: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        call()
    assert str(caught.value) == text


def test_valid_values_pass() -> None:
    expect(True, "Door.key", None, "a key")
    flag("Door.open", False)
    assert whole("Door.locks", 8, 1, 8) == 8
    assert whole("Door.locks", -(2**63), -(2**63)) == -(2**63)
    seconds("Door.shut", INF, 0)


class Service:
    """Callables of each kind."""

    def __call__(self) -> None: ...

    async def wait(self) -> None: ...

    async def iterate(self) -> AsyncIterator[None]:
        yield

    @staticmethod
    async def alone() -> None: ...

    @classmethod
    async def of_class(cls) -> None: ...


class AsyncService:
    """Is called asynchronously."""

    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "value", [print, len, dict, Service, Service(), Service().__call__, functools.partial(print, 1)]
)
def test_functions(value: Any) -> None:
    assert is_function(value)


@pytest.mark.parametrize(
    "value",
    [
        7,
        None,
        Service().wait,
        Service().iterate,
        Service.alone,
        Service.of_class,
        AsyncService(),
        functools.partial(functools.partial(Service().wait)),
        functools.partial(AsyncService()),
    ],
)
def test_no_functions(value: Any) -> None:
    assert not is_function(value)
