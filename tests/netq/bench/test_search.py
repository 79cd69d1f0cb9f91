"""The highest rate that holds, of machines that are a number."""

from __future__ import annotations

import pytest

from netq.bench.search import CLOSE, LEAST, MOST, highest


@pytest.mark.parametrize("limit", [1.0, 1.5, 3.0, 900.0, 1000.0, 1001.0, 47_123.0, 9e6])
def test_what_is_found_holds_and_what_is_a_little_more_does_not(limit: float) -> None:
    tried = []

    def holds(rate: float) -> bool:
        tried.append(rate)
        return rate <= limit

    found = highest(holds, start=1000.0)
    assert found <= limit < found * CLOSE
    assert len(tried) < 25
    assert found in tried


def test_a_machine_that_holds_nothing() -> None:
    tried = []

    def holds(rate: float) -> bool:
        tried.append(rate)
        return False

    assert highest(holds, start=1000.0) == 0
    assert tried[-1] == LEAST


def test_a_machine_that_holds_everything_is_not_asked_for_more_than_the_most() -> None:
    assert highest(lambda rate: rate <= MOST, start=1000.0) == MOST


def test_a_machine_that_is_in_the_mood_by_turns_is_not_searched_for_ever() -> None:
    moods = iter([True, True, False] * 100)
    assert highest(lambda rate: next(moods), start=1000.0) > 0
