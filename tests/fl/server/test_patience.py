"""Patience: what it refuses."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

import fl
import netq

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"deadline": None}, "deadline: None; expected seconds, more than 0"),
    ({"deadline": "5"}, "deadline: '5'; expected seconds"),
    ({"deadline": 0.0}, "deadline: 0.0; expected seconds, more than 0"),
    ({"deadline": math.nan}, "deadline: nan; expected seconds, more than 0"),
    ({"deadline": lambda number: 1 - number}, "deadline of round 1: 0; expected seconds, more than 0"),
    ({"grace": -1}, "grace: -1; expected seconds, 0 or more"),
    ({"close_early": 1}, "close_early: 1; expected True or False"),
    ({"suspend_after": 0}, "suspend_after: 0; expected"),
    ({"void_rounds": 0.5}, "void_rounds: 0.5; expected"),
    ({"void_pause": -1}, "void_pause: -1; expected seconds, 0 or more"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=[said[:20] for _, said in WRONG])
def test_an_invalid_value_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(netq.InvalidOption, match=f"^Patience.{re.escape(said)}"):
        fl.Patience(**wrong)
