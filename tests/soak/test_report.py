"""The slope of the memory, and the report of a run with violations."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.soak.__main__ import finish
from tests.soak.history import Key, Violation, What, Wrong
from tests.soak.report import MIB, Report, slope


def test_slope_is_that_of_the_least_squares_line() -> None:
    assert slope([(0, 10), (1, 12), (2, 14)]) == pytest.approx(2)
    assert slope([(0, 0), (1, 6), (2, 0), (3, 6)]) == pytest.approx(1.2)


def test_slope_is_of_the_second_half() -> None:
    rising = [(float(second), (100 + max(second - 30, 0)) * MIB) for second in range(60)]
    assert report(memory=rising).slope == pytest.approx(60 * 1024, rel=0.01)
    assert report(memory=[(second, -size) for second, size in rising][:30]).slope == 0


def test_report_counts_violations_and_shows_ten() -> None:
    violations = [Violation(Wrong.LOST, Key(1, 0, "up", 0, number), "its story") for number in range(12)]
    bad = report(violations=violations, errors=["1.000: an error"])
    assert not bad.good
    assert "lost 12, duplicated 0" in str(bad)
    assert str(bad).count("its story") == 9
    assert "an error" in str(bad)
    assert report().good


@pytest.mark.parametrize(
    "wrong", [{"violations": [Violation(Wrong.LOST, Key(1, 0, "up", 0, 1), "")]}, {"errors": ["1.000: an error"]}]
)
def test_exit_status_is_1_after_an_error_with_the_command(
    wrong: dict[str, list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert finish(report(), ["the", "command"], Path("a-file")) == 0
    assert "the command" not in capsys.readouterr().out
    assert finish(report(**wrong), ["the", "command"], Path("a-file")) == 1
    printed = capsys.readouterr().out
    assert "the command" in printed
    assert "a-file" in printed


def report(
    *,
    memory: list[tuple[float, int]] | None = None,
    violations: list[Violation] | None = None,
    errors: list[str] | None = None,
) -> Report:
    counts, faults = Counter({What.PUT: 3}), Counter({"cut": 1})
    return Report("tcp", 60, 7, 20, counts, 0, faults, 0.1, violations or [], errors or [], memory or [])
