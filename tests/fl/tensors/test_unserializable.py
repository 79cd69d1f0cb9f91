from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from fl.tensors.serialization import unserializable


def in_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_plain_values_can_be_serialised() -> None:
    assert (
        unserializable({"w": np.ones(3), "n": np.float32(1), "rates": [0.1, (None, {1: b"x"})], "deep": nested(100)})
        == ""
    )


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (OrderedDict(), "has a collections.OrderedDict in it"),
        (in_itself(), "contains itself"),
        (nested(101), "more than 100 containers in one another"),
        (1 << 8 * 5000, "an integer of"),
        ({n * (2**61 - 1): 0 for n in range(20)}, "keys of equal hash"),
    ],
    ids=["class", "cycle", "depth", "integer", "hashes"],
)
def test_what_a_receiver_would_refuse_is_named(value: Any, why: str) -> None:
    found = unserializable({"good": 1, "bad": value})
    assert found.startswith("'bad': ")
    assert why in found
    assert found.endswith("expected plain values: numbers, texts, lists, dicts, arrays, tensors")
