"""Percentiles by nearest rank."""

from __future__ import annotations

from array import array

import pytest

from netq.bench.percentiles import may_exceed, percentile, rank, spread


@pytest.mark.parametrize(
    ("percent", "count", "expected"),
    [
        *[("50", 1, 1), ("50", 2, 1), ("50", 3, 2), ("99", 100, 99), ("99", 101, 100)],
        *[("99.9", 10, 10), ("99.9", 999, 999), ("99.9", 1000, 999), ("99.9", 1001, 1000), ("99.9", 10_000, 9990)],
    ],
)
def test_the_rank_is_the_least_below_which_so_many_lie(percent: str, count: int, expected: int) -> None:
    assert rank(percent, count) == expected


def test_the_example_of_the_books() -> None:
    values = [15, 20, 35, 40, 50]
    assert [percentile(p, values) for p in ("5", "30", "40", "50", "100")] == [15, 20, 20, 35, 50]


def test_a_spread_sorts_and_divides() -> None:
    figures = spread(array("q", range(10_000, 0, -1)), unit=10)
    assert figures == {"min": 0.1, "p50": 500.0, "p90": 900.0, "p99": 990.0, "p99.9": 999.0, "max": 1000.0}


@pytest.mark.parametrize("count", [1, 10, 999, 1000, 1001, 2000, 54_321])
def test_so_many_may_exceed_a_limit_and_no_more(count: int) -> None:
    above = may_exceed("99.9", count)
    assert percentile("99.9", [0] * (count - above) + [9] * above) == 0
    assert percentile("99.9", [0] * (count - above - 1) + [9] * (above + 1)) == 9
