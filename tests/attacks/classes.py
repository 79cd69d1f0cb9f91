"""Classes that an application might allow in messages. `STATE` says what each had before any message came."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass
class Config:
    rate: float
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ValueError(f"rate: {self.rate!r}; expected a number between 0 and 1")

    def doubled(self) -> float:
        return 2 * self.rate


@dataclass(frozen=True)
class Key:
    number: int


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0

    def __post_init__(self) -> None:
        if type(self.x) is not int or type(self.y) is not int:
            raise TypeError("expected whole numbers")


@dataclass(slots=True)
class Slotted:
    x: int = 0


@dataclass
class Counted:
    items: list[int]
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = len(self.items)


class Named(NamedTuple):
    name: str
    value: int = 0


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Failed(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Plain:
    """Has nothing that pickle asks for."""

    def __init__(self, value: int) -> None:
        self.value = value


class Reduced:
    """Travels as its constructor's argument."""

    def __init__(self, value: int) -> None:
        if type(value) is not int:
            raise TypeError("expected a whole number")
        self.value = value

    def __reduce__(self) -> tuple[type[Reduced], tuple[int]]:
        return Reduced, (self.value,)

    def __repr__(self) -> str:
        return f"Reduced({self.value})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reduced) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


class Restored:
    """Checks its own state."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __getstate__(self) -> int:
        return self.value

    def __setstate__(self, state: Any) -> None:
        if type(state) is not int:
            raise TypeError("expected a whole number")
        self.value = state

    def __repr__(self) -> str:
        return f"Restored({self.value})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Restored) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


class Inherited(Restored):
    """Gets `__setstate__` from a base."""


class Text(str):
    """A subclass of a builtin type."""


def function(command: str = "harmless") -> str:
    return command


CLASSES = (Config, Key, Point, Slotted, Counted, Named, Colour, Rights, Failed, Plain, Reduced, Restored, Inherited)


def state() -> list[Any]:
    """Return all that a message could change in these classes, to compare it."""
    methods = [value for kind in CLASSES for value in vars(kind).values() if hasattr(value, "__code__")]
    return [
        *[dict(vars(kind)) for kind in CLASSES],
        *[(method.__code__, method.__defaults__, dict(vars(method))) for method in (*methods, function)],
        *[dict(vars(member)) for member in (*Colour, *Rights)],
    ]
