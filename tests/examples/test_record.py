"""The picture of the demo's terminal: some of its lines, and nothing that is fetched from elsewhere."""

from __future__ import annotations

import re

from examples.digits.record import FIRST, LAST, picture


def test_the_picture_has_the_first_and_the_last_lines() -> None:
    svg = picture("\n".join(f"line{number}" for number in range(40)))
    shown = re.findall(r"line(\d+)", svg)
    assert shown == [str(number) for number in (*range(FIRST), *range(40 - LAST, 40))]


def test_the_picture_fetches_nothing() -> None:
    assert set(re.findall(r"url\((.)", picture("text"))) == {"#"}
    assert "font-face" not in picture("text")
