"""Checks the fields of messages. Needs no numpy."""

from __future__ import annotations

import reprlib

from fl.errors import InvalidUpdate

MODEL_IS = "a dict of arrays or tensors by name, as net.state_dict() is"


def expect(right: bool, name: str, value: object, expected: str) -> None:
    """Raise InvalidUpdate unless the value of a field is right. The error shows the value, shortened."""
    if not right:
        raise InvalidUpdate(f"{name}: {type(value).__name__} {_shown(value)}; expected {expected}")


def _shown(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # an int with more digits than Python converts to text
        return "out of all bounds"
