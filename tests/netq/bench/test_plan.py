"""Sizes in text, and the plans that both sides make from the same numbers."""

from __future__ import annotations

from collections import Counter

import pytest

from netq.bench import plan
from netq.bench.plan import Plan, about, format_size, parse_size, powers


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *[("1", 1), ("64", 64), ("4_000", 4000), ("64B", 64), ("2KiB", 2048), ("2 KiB", 2048), ("2k", 2048)],
        *[("128MiB", 2**27), ("1GiB", 2**30), ("100MB", 10**8), ("1kb", 1000), ("1024GiB", 2**40), ("1TiB", 2**40)],
    ],
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.5MiB", "MiB", "3XB", "1025GiB", "2TiB", "1e6", "٣", "64 64", "_1", "1_", "1__0"]
)
def test_wrong_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size from 1 byte to 1TiB"):
        parse_size(text)


@pytest.mark.parametrize("size", [1, 1000, 1024, 3 * 2**20, 2**27, 2**40])
def test_printed_size_can_be_parsed(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("size", "text"), [(1, "1B"), (1025, "1025B"), (2048, "2KiB"), (2**27, "128MiB"), (2**40, "1TiB")]
)
def test_sizes_are_printed_in_the_largest_unit(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(("size", "text"), [(1, "1.0B"), (1536, "1.5KiB"), (2**31, "2.0GiB"), (3 * 2**40, "3.0TiB")])
def test_about_rounds_a_size(size: int, text: str) -> None:
    assert about(size) == text


def test_step_0_is_the_largest_size_alone() -> None:
    assert powers(21, 21, 0, 1.0, 4000, seed=0).pairs == ((2**21, 4000),)


def test_powers_make_the_documented_mix() -> None:
    mix = powers(8, 32, 2, 0.5, 1, seed=0)
    assert mix.pairs[:2] == ((2**8, 2**12), (2**10, 2**11))
    assert mix.pairs[-1] == (2**32, 1)
    assert (mix.count, mix.nbytes) == (8191, 2**33 - 2**20)  # its README: 8.19 K operations, 8.59 GB each way


def test_counts_are_rounded() -> None:
    assert powers(0, 2, 1, 0.3, 1, seed=0).pairs == ((1, 2), (2, 1), (4, 1))  # 2^0.6 = 1.52, 2^0.3 = 1.23


def test_order_is_a_shuffle_that_depends_on_the_seed() -> None:
    mix = Plan(((1, 300), (2, 200), (4, 100)), seed=7)
    order = list(mix.order())
    assert Counter(order) == {0: 300, 1: 200, 2: 100}
    assert order != sorted(order)
    assert order == list(mix.order())
    assert order != list(Plan(mix.pairs, seed=8).order())


def test_order_of_one_size_takes_no_memory() -> None:
    order = Plan(((64, plan.MOST_MESSAGES),)).order()
    assert order.__sizeof__() < 100


@pytest.mark.parametrize(
    "pairs",
    [(), ((0, 1),), ((1, 0),), ((2**40 + 1, 1),), ((1, plan.MOST_MESSAGES), (2, 1)), ((1, 1),) * 65, ((1, 10**5000),)],
)
def test_plan_is_bounded(pairs: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ValueError):
        Plan(pairs)


def test_min_size_above_max_size_is_refused() -> None:
    with pytest.raises(ValueError, match="--min-size 9 is above --max-size 3"):
        powers(9, 3, 1, 1.0, 1, seed=0)
