"""Quantisation: bounded errors, unbiased random rounding, and any bytes decode to finite values or are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fl.compression.quantize import BITS, LIMIT, ROW, decode, encode, nbytes
from fl.errors import InvalidUpdate

FEWER = ("float16", "bfloat16", "int8", "int4")
LEVELS = {"int8": 127, "int4": 7}
COUNTS = (0, 1, 2, 3, ROW - 1, ROW, ROW + 1, 32 * 1024 - 1, 32 * 1024, 32 * 1024 + 1, 100_001)


def normal(count: int, coding: str = "float32", seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).standard_normal(count).astype("f8" if coding == "float64" else "f4")


def encoded(values: NDArray[Any], coding: str, seed: int = 0) -> NDArray[np.uint8]:
    return encode(values, coding, np.random.SFC64(seed))


def decoded(data: NDArray[np.uint8], coding: str, count: int) -> NDArray[Any]:
    blocks = list(decode(data, coding, count))
    starts = [start for start, _ in blocks]
    assert starts == list(np.cumsum([0, *[block.size for _, block in blocks]]))[:-1]
    return np.concatenate([block for _, block in blocks]) if blocks else np.empty(0, "f4")


def moved(values: NDArray[Any], coding: str, seed: int = 0) -> NDArray[Any]:
    return decoded(encoded(values, coding, seed), coding, values.size)


def largest_of_rows(values: NDArray[Any]) -> NDArray[Any]:
    rows = [np.full(row.size, np.abs(row).max()) for row in np.split(values, range(ROW, values.size, ROW))]
    return np.concatenate(rows)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("coding", BITS)
def test_round_trip_within_tolerance(coding: str, count: int) -> None:
    values = normal(count, coding)
    data = encoded(values, coding)
    assert data.nbytes == nbytes(coding, count)
    there = decoded(data, coding, count)
    assert there.size == count
    if count == 0:
        return
    assert there.dtype == values.dtype
    steps = {"float16": 2**-11, "bfloat16": 2**-8, "int8": 1.001 / 127, "int4": 1.001 / 7}
    assert (np.abs(there - values) <= steps.get(coding, 0) * largest_of_rows(values)).all()


def test_scales_take_less_than_a_hundredth_of_int8() -> None:
    assert nbytes("int8", 10**6) < 1.01 * 10**6
    assert nbytes("int4", 10**6) < 1.02 * 10**6 / 2


@pytest.mark.parametrize("coding", FEWER)
def test_error_falls_with_bits(coding: str) -> None:
    values = normal(100_000)
    error = np.linalg.norm(moved(values, coding) - values) / np.linalg.norm(values)
    low, high = {"float16": (1e-4, 3e-4), "bfloat16": (1e-3, 2e-3), "int8": (0.009, 0.012), "int4": (0.17, 0.21)}[
        coding
    ]
    assert low < error < high


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.5, 0.75, 0.9])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("coding", LEVELS)
def test_random_rounding_has_no_bias(coding: str, sign: int, fraction: float) -> None:
    values = np.full(1000 * ROW, sign * (2 + fraction) / LEVELS[coding], np.float32)
    values[::ROW] = 1  # the largest of each row: a step is 1 / levels
    rest = np.arange(values.size) % ROW != 0
    error = (moved(values, coding)[rest] - values[rest]).mean(dtype=float) * LEVELS[coding]
    bound = 5 * np.sqrt(fraction * (1 - fraction) / rest.sum()) + 2**-15  # five standard deviations: 0.0035 at most
    assert abs(error) < bound  # rounding to the nearest is off by 0.1 and more, truncation by the fraction


@pytest.mark.parametrize("coding", LEVELS)
def test_mean_of_many_encodings_is_the_value(coding: str) -> None:
    values = normal(2 * ROW)
    mean = np.mean([moved(values, coding, seed) for seed in range(400)], axis=0, dtype=float)
    step = largest_of_rows(values) / LEVELS[coding]
    assert (np.abs(mean - values) < 5.5 * 0.5 * step / 400**0.5).all()


@pytest.mark.parametrize("coding", FEWER)
def test_same_seed_encodes_alike(coding: str) -> None:
    values = normal(10_000)
    assert np.array_equal(encoded(values, coding, 3), encoded(values, coding, 3))
    assert np.array_equal(encoded(values, coding, 3), encoded(values, coding, 4)) == (coding not in LEVELS)


def test_bfloat16_rounds_as_torch() -> None:
    halfway = np.arange(2**12, dtype=np.uint32) << 15 | np.uint32(0x3F800000)  # ties go to even
    values = np.concatenate(
        [normal(10_000) * np.float32(1e-3), halfway.view(np.float32), np.array([1e-40, -0.0], np.float32)]
    )
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(moved(values, "bfloat16").view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("coding", FEWER)
@pytest.mark.parametrize("magnitude", [2.0**-99, 1e-20, 1e-6, 1.0, 65504.0, 1e5, 1e30, LIMIT])
def test_no_magnitude_overflows_or_vanishes(coding: str, magnitude: float) -> None:
    values = np.float32(magnitude) * np.clip(normal(3 * ROW), -1, 1)
    values[:2] = magnitude, -magnitude
    there = moved(values, coding)
    assert np.isfinite(there).all()
    assert np.linalg.norm((there - values) / magnitude) < 0.15 * np.linalg.norm(values / magnitude)
    np.testing.assert_allclose(there[:2], values[:2], rtol=0.15)


@pytest.mark.parametrize("coding", ["float16", "int8", "int4"])
def test_row_of_tiny_values_becomes_zeros(coding: str) -> None:
    values = np.full(3 * ROW, 1e-3, np.float32)
    values[:ROW] = 0
    values[-ROW:] = 1e-38
    there = moved(values, coding)
    assert (there[:ROW] == 0).all()
    assert (there[-ROW:] == 0).all()
    np.testing.assert_allclose(there[ROW:-ROW], 1e-3, rtol={"float16": 2**-11, "int8": 1e-5, "int4": 1e-5}[coding])


def test_bytes_match_the_format() -> None:
    values = np.array([7, -7, 3], np.float32)
    scale = np.float32(1 + 2**-20).tobytes()
    assert encoded(values * 0 + 7, "int4")[4:].tobytes() in (b"\xff\x0f", b"\xff\x0e", b"\xef\x0f", b"\xfe\x0f")
    assert encoded(values, "int4")[:4].tobytes() == scale
    assert decoded(np.frombuffer(scale + b"\x1f\x0b", np.uint8), "int4", 3).round(3).tolist() == [7, -7, 3]
    assert decoded(np.frombuffer(b"\0\0\0\x3f\x7f\x80", np.uint8), "int8", 2).tolist() == [63.5, -64]
    assert decoded(np.frombuffer(b"\0\0\x80\x40\0\x3c\0\xbc", np.uint8), "float16", 2).tolist() == [4, -4]
    assert decoded(np.frombuffer(b"\x80\x3f\0\xc0", np.uint8), "bfloat16", 2).tolist() == [1, -2]


@pytest.mark.parametrize("coding", BITS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_values_are_refused(coding: str, value: float) -> None:
    data = encoded(normal(2 * ROW, coding), coding)
    if coding in ("int8", "int4", "float16"):
        data[4:8].view("<f4")[0] = value
    else:
        code = np.array(value, {"float64": "<f8"}.get(coding, "<f4")).tobytes()
        data[: BITS[coding] // 8] = np.frombuffer(code, np.uint8)[-BITS[coding] // 8 :]
    with pytest.raises(InvalidUpdate, match="NaN or infinite"):
        decoded(data, coding, 2 * ROW)


@pytest.mark.parametrize("coding", ["int8", "int4", "float16"])
def test_scale_that_overflows_is_refused(coding: str) -> None:
    data = encoded(np.ones(10, np.float32), coding)
    data[:4].view("<f4")[0] = 3e38
    with pytest.raises(InvalidUpdate, match="NaN or infinite"):
        decoded(data, coding, 10)


def test_large_finite_values_are_accepted() -> None:
    values = np.full(5, 3e38, np.float32)
    assert np.array_equal(moved(values, "float32"), values)
    assert np.array_equal(moved(np.full(5, 1e300), "float64"), np.full(5, 1e300))


@given(st.sampled_from(list(BITS)), st.integers(0, 2 * ROW), st.data())
def test_any_data_is_finite_or_refused(coding: str, count: int, data: st.DataObject) -> None:
    size = nbytes(coding, count)
    some = data.draw(st.binary(min_size=min(size, 64), max_size=min(size, 64)))
    memory = np.resize(np.frombuffer(some, np.uint8), size)
    try:
        values = decoded(memory, coding, count)
    except InvalidUpdate:
        return
    assert values.size == count
    assert np.isfinite(values).all()
