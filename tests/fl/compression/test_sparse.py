"""Top-k selection is exact, the code of places is short, and any bytes decode to valid places or are refused."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fl.compression.sparse import decode, encode, largest, nbytes
from fl.errors import InvalidUpdate

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def by_sorting(values: NDArray[np.float32], count: int) -> list[int]:
    order = np.argsort(-np.abs(values), kind="stable")[:count]
    return sorted(int(place) for place in order if values[place] != 0)


@given(st.lists(FLOATS | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45]), min_size=1, max_size=60), st.data())
def test_largest_matches_sorting(numbers: list[float], data: st.DataObject) -> None:
    values = np.array(numbers, np.float32)
    count = data.draw(st.integers(1, values.size))
    assert largest(values, count).tolist() == by_sorting(values, count)


@pytest.mark.parametrize("count", [1, 100, 5_000, 50_000, 99_999])
def test_largest_of_many_blocks(count: int) -> None:
    values = np.random.default_rng(0).standard_normal(100_000).astype("f4")
    assert largest(values, count).tolist() == by_sorting(values, count)


def test_first_of_equal_magnitudes_are_selected() -> None:
    values = np.full(100_000, -2, np.float32)
    values[70_000] = 3
    assert largest(values, 40_001).tolist() == [*range(40_000), 70_000]


def test_zeros_are_not_selected() -> None:
    values = np.zeros(100_000, np.float32)
    assert largest(values, 10).tolist() == []
    values[[3, 99_999]] = 1e-45, -1
    assert largest(values, 10).tolist() == [3, 99_999]


def test_largest_needs_no_copy() -> None:
    values = np.random.default_rng(0).standard_normal(2**20).astype("f4")
    tracemalloc.start()
    try:
        largest(values, 2**14)
        assert tracemalloc.get_traced_memory()[1] < values.nbytes / 2
    finally:
        tracemalloc.stop()


@given(st.integers(1, 500), st.data())
def test_places_round_trip(size: int, data: st.DataObject) -> None:
    places = np.array(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1))), np.uint32)
    if places.size == size:
        assert nbytes(size, size) == 0
        return
    there = encode(places, size)
    assert there.nbytes == nbytes(places.size, size) <= -(-size // 8)
    assert decode(there, places.size, size).tolist() == places.tolist()


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 0.9])
def test_places_of_many_blocks_round_trip_near_the_entropy(share: float) -> None:
    size = 300_000
    places = np.flatnonzero(np.random.default_rng(0).random(size) < share).astype(np.uint32)
    there = encode(places, size)
    assert np.array_equal(decode(there, places.size, size), places)
    share = places.size / size
    entropy = -(np.log2(share) + (1 - share) / share * np.log2(1 - share))  # bits per place
    assert there.nbytes * 8 / places.size < entropy + 1.1


@pytest.mark.parametrize("size", [2**32, 2**32 + 1, 2**40, 2**48])
def test_size_of_the_tensor_costs_no_memory(size: int) -> None:
    places = np.array([0, 5, size // 2, size - 1], np.uint64)
    there = encode(places, size)
    assert there.nbytes < 60
    assert decode(there, 4, size).tolist() == places.tolist()


def test_all_or_none_need_no_places() -> None:
    assert (nbytes(0, 10), nbytes(10, 10), nbytes(0, 0)) == (0, 0, 0)


# 8 places of 64: the lower three bits are in planes; the upper bits of these places are 0, 0, 2, 2, 4, 5, 5, 7
EIGHT = [1, 6, 19, 20, 33, 40, 41, 63]
PLANES, HIGH = bytes([0b10101011, 0b01100001, 0b01010001]), bytes([0b11001100, 0b10110010])


def test_bytes_match_the_format() -> None:
    assert encode(np.array(EIGHT, np.uint32), 64).tobytes() == PLANES + HIGH
    assert encode(np.array([1, 6, 7], np.uint32), 8).tobytes() == bytes([0b01000011])


@pytest.mark.parametrize(
    ("data", "count", "size", "what"),
    [
        (bytes([0b01000111]), 3, 8, "ones"),
        (bytes([0b01000001]), 3, 8, "ones"),
        (PLANES + bytes([0b11001100, 0b10110011]), 8, 65, "ones"),
        (PLANES + bytes([0b11001100, 0b10110000]), 8, 64, "ones"),
        (PLANES + bytes([0b11001100, 0b10110001]), 8, 64, "ones"),  # the last beyond the end
        (bytes([0b01101011, 0b10100001, 0b10010001]) + HIGH, 8, 64, "order"),  # 6, 1, …
        (bytes([0b11101011, 0b00100001, 0b00010001]) + HIGH, 8, 64, "order"),  # 1, 1, …
        (PLANES + bytes([0b11001100, 0b10110001]), 8, 71, "range"),  # …, 71
    ],
)
def test_places_out_of_order_or_range_are_refused(data: bytes, count: int, size: int, what: str) -> None:
    assert len(data) == nbytes(count, size)
    with pytest.raises(InvalidUpdate, match=what):
        decode(np.frombuffer(data, np.uint8), count, size)


@given(st.integers(2, 3000), st.data())
def test_any_data_is_valid_places_or_refused(size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, size - 1))
    need = nbytes(count, size)
    some = data.draw(st.binary(min_size=min(need, 32), max_size=min(need, 32)))
    try:
        places = decode(np.resize(np.frombuffer(some, np.uint8), need), count, size)
    except InvalidUpdate:
        return
    assert places.size == count
    assert (np.diff(places.astype(np.int64)) > 0).all()
    assert 0 <= places[0] <= places[-1] < size
