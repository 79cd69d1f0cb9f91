"""Types with keys that a peer can choose badly are refused, wherever they are; others are taken."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import numpy as np
import pytest

from netq.errors import InvalidOption, Unreadable
from netq.utils.msgpack import MsgpackSerializer
from netq.utils.msgpack_keys import MAX_NUMBERS
from netq.utils.stream import Stream, layout

Few = msgspec.Meta(max_length=MAX_NUMBERS)


class Colour(enum.Enum):
    RED = 1


class Point(msgspec.Struct, frozen=True):
    x: int


@dataclass
class Tree:
    trees: list[Tree]
    counts: dict[tuple[int, ...], int]


@dataclass
class Plain:
    weights: dict[str, np.ndarray]
    more: list[Plain] = field(default_factory=list)


class Named(TypedDict):
    inner: tuple[Tree, int]


class Row(NamedTuple):
    points: frozenset[Point]


@pytest.mark.parametrize(
    ("type", "place", "keys"),
    [
        (dict[tuple[int, ...], int], "", "tuple"),
        (set[tuple[int, int]], "", "tuple"),
        (list[frozenset[tuple[int, ...]]], "", "tuple"),
        (dict[Point, int], "", "Point"),
        (dict[uuid.UUID, int], "", "uuid"),
        (set[decimal.Decimal], "", "decimal"),
        (set[datetime.datetime], "", "datetime"),
        (dict[int, int], "", "int"),
        (set[float], "", "float"),
        (Annotated[dict[int, int], msgspec.Meta(max_length=MAX_NUMBERS + 1)], "", "int"),
        (Annotated[dict[tuple[int, ...], int], Few], "", "tuple"),
        (Mapping[str | int, int], "", "int"),
        (dict[str, dict[str, set[frozenset[str]]]], "", "frozenset"),
        (Tree, ".counts", "tuple"),
        (Named | None, ".inner.counts", "tuple"),
        (tuple[str, Row], ".points", "Point"),
        (Annotated[Tree, msgspec.Meta(title="a tree")], ".counts", "tuple"),
    ],
)
def test_keys_that_a_peer_can_choose_badly_are_refused(type: Any, place: str, keys: str) -> None:
    error = rf"^MsgpackSerializer.type{place}: a (dict|set|frozenset) with keys or members of the type {keys}, which"
    with pytest.raises(InvalidOption, match=error):
        MsgpackSerializer(type)


@pytest.mark.parametrize(
    "type",
    [
        Any,
        dict,
        dict[Any, int],
        Plain,
        set[bytes | None],
        dict[bool, int],
        dict[Colour, tuple[int, ...]],
        set[Literal[1, 2]],
        dict[datetime.date, uuid.UUID],
        Annotated[dict[int | str, int], Few],
        Annotated[set[float], Few],
    ],
)
def test_other_keys_are_taken(type: Any) -> None:
    MsgpackSerializer(type)


@pytest.mark.parametrize("head", [b"\xdf\x00\x00\x03\xe9", b"\xdd\x00\x00\x03\xe9"])
def test_too_many_numbers_are_refused_before_any_is_read(head: bytes) -> None:
    """The text in place of the first number is not reached."""
    type = Annotated[dict[int, int], Few] | Annotated[set[int], Few]
    with pytest.raises(Unreadable, match=rf"length <= {MAX_NUMBERS}"):
        MsgpackSerializer(type).load(Stream([bytearray(b"".join(layout([head + b"\xa1x" * 2002], [])))]))
