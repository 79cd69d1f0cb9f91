"""Packed tensors: round trip, checks of every field and byte, and how the server reads an update."""

from __future__ import annotations

import copy
import pickle
import struct
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fl.aggregation.mean import WeightedMean
from fl.compression import quantize, sparse
from fl.compression.compressor import Compression, Compressor
from fl.compression.packed import Packed, Unpacked
from fl.envelope import Job
from fl.errors import InvalidUpdate
from fl.messages import MESSAGES, Reply, Update
from fl.tensors.model import check
from netq.errors import SerializationError, Unreadable
from netq.utils.stream import Stream

JOB = Job(1, 1, "train")
TEXTS = ("none", "int8", "top_k=0.1", "float16, top_k=0.3", "int4, zstd=3", "int8, top_k=0.05, zstd=1")


def random(shape: tuple[int, ...] = (300, 70), dtype: str = "float32", seed: int = 0) -> NDArray[Any]:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def packed(tensor: Any, text: str = "int8, top_k=0.1", seed: int = 0) -> Packed:
    zeros = tensor * 0
    there = Compressor(Compression.parse(text), seed).pack({"w": tensor}, {"w": zeros})["w"]
    assert type(there) is Packed
    return there


def arrived(stream: Stream) -> Any:
    """Return the tensor "w" of the update in a message."""
    return MESSAGES.load(Stream([bytearray(bytes(stream))])).content.model["w"]


def sent(tensor: Any) -> Stream:
    """Return the message of an update with this tensor."""
    stream: Stream = MESSAGES.dump(Reply(JOB, Update({"w": tensor}, 1)))
    return stream


def made(**fields: Any) -> Packed:
    """Return a Packed of ten unchanged float32 elements, with these fields replaced."""
    plain: dict[str, Any] = {"dtype": "float32", "shape": (10,), "coding": "float32", "count": 0, "zstd": False}
    return Packed(**{**plain, "data": np.empty(0, np.uint8), **fields})


# Round trip


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (300, 70)])
def test_packed_round_trip(text: str, shape: tuple[int, ...]) -> None:
    here = packed(random(shape), text)
    there = arrived(sent(here))
    assert (there.dtype, there.shape, there.nbytes) == ("float32", shape, here.nbytes)
    change = there.unpack()
    assert (change.dtype, change.shape, change.flags.writeable) == (np.float32, shape, True)
    np.testing.assert_array_equal(change, here.unpack())


def test_message_is_little_larger_than_the_data() -> None:
    here = packed(random())
    assert here.nbytes == here.data.nbytes
    assert here.nbytes < sent(here).nbytes < here.nbytes + 500


def test_packed_can_be_pickled_and_copied() -> None:
    here = packed(random())
    for other in (pickle.loads(pickle.dumps(here)), copy.copy(here), copy.deepcopy(here)):
        np.testing.assert_array_equal(other.unpack(), here.unpack())


@pytest.mark.parametrize("text", TEXTS)
def test_data_may_be_unaligned(text: str) -> None:
    here = packed(random(), text)
    memory = np.concatenate([np.zeros(1, np.uint8), here.data])[1:]
    np.testing.assert_array_equal(replace(here, data=memory).unpack(), here.unpack())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("text", TEXTS)
def test_unpack_adds_the_change_to_the_start(text: str, dtype: str) -> None:
    here, start = packed(random(dtype=dtype), text), random(dtype=dtype, seed=1)
    before = start.copy()
    there = here.unpack(start)
    assert (there.dtype, there.shape) == (start.dtype, start.shape)
    tolerance = 2e-3 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(there, start + here.unpack(), rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(start, before)


@pytest.mark.parametrize("coding", [*quantize.BITS])
def test_bfloat16_takes_each_coding_that_a_peer_may_name(coding: str) -> None:
    values = np.asarray([1.0, -3.0, 0.5], "float64" if coding == "float64" else "float32")
    data = quantize.encode(values, coding, np.random.SFC64(0))
    there = Packed("bfloat16", (3,), coding, 3, False, data)
    start = {"w": torch.tensor([1.0, 1.0, float("inf")], dtype=torch.bfloat16)}
    found = Unpacked({"w": there}, start)["w"]
    assert found.dtype == torch.bfloat16
    np.testing.assert_allclose(found.float().numpy(), [2.0, -2.0, np.inf], atol=0.5)
    large = Packed("bfloat16", (3,), "float32", 3, False, np.full(3, 3.4e38, np.float32).view(np.uint8))
    with pytest.raises(InvalidUpdate, match="'w' holds NaN or infinity"):
        check(Unpacked({"w": large}, {"w": torch.zeros(3).bfloat16()}), like={"w": torch.zeros(3).bfloat16()})


def test_start_of_any_layout_is_accepted() -> None:
    here, start = packed(random()), random((70, 300), seed=1).T
    assert not start.flags.c_contiguous
    np.testing.assert_array_equal(here.unpack(start), start + here.unpack())


def test_sum_beyond_the_dtype_is_infinite_and_refused() -> None:
    half = packed(np.full((2,), 6e4, np.float16), "int8")
    start = {"w": np.full((2,), 6e4, np.float16)}
    assert np.isinf(half.unpack(start["w"])).all()
    with pytest.raises(InvalidUpdate, match="'w' holds NaN or infinity"):
        check(Unpacked({"w": half}, start), like=start)


def test_unpacking_needs_the_memory_of_one_tensor() -> None:
    here = packed(random((2**20,)), "int8, top_k=0.05")
    start = np.zeros(2**20, np.float32)
    tracemalloc.start()
    try:
        here.unpack(start)
        assert tracemalloc.get_traced_memory()[1] < 1.3 * start.nbytes
    finally:
        tracemalloc.stop()


# Hostile peers


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"dtype": "int32"}, "dtype: str 'int32'; expected one of float16"),
        ({"dtype": "float8_e5m2"}, "dtype"),
        ({"dtype": ["float32"]}, "dtype: list"),
        ({"dtype": None}, "dtype"),
        ({"shape": 10}, "shape"),
        ({"shape": (10.0,)}, "shape"),
        ({"shape": (True,)}, "shape"),
        ({"shape": (-1,)}, "shape"),
        ({"shape": (-1, -10)}, "shape"),
        ({"shape": (1,) * 65}, "shape"),
        ({"shape": (2**49,)}, "shape"),
        ({"shape": (0, 2**62)}, "shape"),
        ({"shape": (2**30, 2**30, 0)}, "shape"),
        ({"shape": (10**5000,)}, "shape: tuple .*expected"),
        ({"coding": "int3"}, "coding"),
        ({"coding": ("int8",)}, "coding"),
        ({"count": -1}, "count"),
        ({"count": 11}, "count: int 11; expected a whole number of 10 elements at most"),
        ({"count": 1.0}, "count"),
        ({"count": True}, "count"),
        ({"count": 10**5000}, "count: int out of all bounds"),
        ({"zstd": 1}, "zstd"),
        ({"zstd": True}, "data: .*fewer than 0 bytes, not 0"),
        ({"data": b""}, "data: bytes"),
        ({"data": None}, "data"),
        ({"data": np.zeros(0, np.int8)}, "data"),
        ({"data": np.zeros((0, 1), np.uint8)}, "data"),
        ({"data": np.zeros(1, np.uint8)}, "data: .*expected 0 bytes, not 1"),
        ({"data": torch.zeros(0, dtype=torch.uint8)}, "data"),
        ({"count": 10, "data": np.zeros(39, np.uint8)}, "data: .*expected 40 bytes, not 39"),
        ({"count": 10, "data": np.zeros(41, np.uint8)}, "data: .*expected 40 bytes, not 41"),
        ({"count": 10, "zstd": True, "data": np.zeros(40, np.uint8)}, "data: .*fewer than 40 bytes, not 40"),
        ({"count": 9, "data": np.zeros(36, np.uint8)}, "data: .*expected 38 bytes"),
    ],
)
def test_each_field_is_checked_and_named(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidUpdate, match=f"^{what}"):
        made(**fields)
    names = ("dtype", "shape", "coding", "count", "zstd", "data")
    values = [fields.get(name, getattr(made(), name)) for name in names]
    with pytest.raises((Unreadable, SerializationError)):
        arrived(sent({"packed": values}))


def test_data_with_gaps_is_refused() -> None:
    with pytest.raises(InvalidUpdate, match=r"^data: .*expected a flat array of uint8"):
        made(count=10, data=np.zeros(80, np.uint8)[::2])


def test_claimed_size_costs_no_memory_before_comparison() -> None:
    tracemalloc.start()
    try:
        size = 2**48
        data = np.zeros(quantize.nbytes("int8", 1) + sparse.nbytes(1, size), np.uint8)
        vast = made(shape=(size,), count=1, coding="int8", data=data)
        frame = made(shape=(size,), count=size, coding="int8", zstd=True, data=np.zeros(100, np.uint8))
        for claim in (vast, frame):
            for deltas in (True, False):
                with pytest.raises(
                    InvalidUpdate, match=r"'w' is the change of a float32 of shape \(281474976710656,\)"
                ):
                    Unpacked({"w": claim}, {"w": np.zeros(10, np.float32)}, deltas=deltas)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_wrong_places_are_refused() -> None:
    good = packed(random((1000,)), "float16, top_k=0.05")
    split = quantize.nbytes("float16", good.count)
    for value in (0, 255):
        bad = good.data.copy()
        bad[split:] = value
        with pytest.raises(InvalidUpdate, match=r"bitmap|places"):
            replace(good, data=bad).unpack()


# Zstandard

NUMBERS = np.zeros(200_000, np.float32)


def zipped(frame: bytes) -> Packed:
    """Return a Packed whose data should be those of NUMBERS."""
    data = np.frombuffer(frame, np.uint8)
    return made(shape=(200_000,), count=200_000, zstd=True, data=data)


def frame_of(data: bytes = NUMBERS.tobytes(), **options: Any) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


def test_valid_frame_is_read() -> None:
    assert np.array_equal(zipped(frame_of()).unpack(), NUMBERS)


@pytest.mark.parametrize("size", [0, 1, 799_999, 800_001, 80_000_000])
def test_frame_of_another_size_is_refused_before_decoding(size: int) -> None:
    bomb = zipped(frame_of(bytes(size)))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidUpdate, match=f"announces {size} bytes; expected 800000"):
            bomb.unpack()
        assert tracemalloc.get_traced_memory()[1] < 900_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [100_000, 799_000, 801_000, 80_000_000])
def test_frame_with_a_wrong_size_is_refused(size: int) -> None:
    frame = bytearray(frame_of(bytes(size)))
    place = 5 if frame[4] & 0x20 else 6  # after the window descriptor, if present
    assert struct.unpack_from("<I", frame, place) == (size,)
    struct.pack_into("<I", frame, place, 800_000)
    with pytest.raises(InvalidUpdate, match="cannot be read"):
        zipped(bytes(frame)).unpack()


def test_frame_without_its_size_is_refused() -> None:
    with pytest.raises(InvalidUpdate, match=r"announces -?\d+ bytes; expected 800000"):
        zipped(frame_of(write_content_size=False)).unpack()


@pytest.mark.parametrize("more", [b"x", frame_of()])
def test_trailing_data_after_the_frame_is_refused(more: bytes) -> None:
    with pytest.raises(InvalidUpdate, match="cannot be read"):
        zipped(frame_of() + more).unpack()


def test_truncated_frame_is_refused() -> None:
    frame = frame_of(write_checksum=True)
    for size in range(len(frame)):
        with pytest.raises(InvalidUpdate, match="zstd frame"):
            zipped(frame[:size]).unpack()


@given(st.binary(max_size=60), st.booleans())
def test_any_frame_is_a_finite_change_or_refused(tail: bytes, begun: bool) -> None:
    head = b"\x28\xb5\x2f\xfd\xa4" + struct.pack("<I", 800_000) if begun else b""
    try:
        there = zipped(head + tail).unpack()
    except InvalidUpdate:
        return
    assert np.isfinite(there).all()


def test_server_without_zstandard_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    good = zipped(frame_of())
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InvalidUpdate, match=r"it is compressed, and zstd needs .*: pip install zstandard"):
        good.unpack()


@given(st.sampled_from(list(quantize.BITS)), st.integers(0, 700), st.data())
def test_any_data_is_a_finite_change_or_refused(coding: str, size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, size))
    whole = quantize.nbytes(coding, count) + sparse.nbytes(count, size)
    some = data.draw(st.binary(min_size=min(whole, 48), max_size=min(whole, 48)))
    dtype = data.draw(st.sampled_from(["float16", "float32", "float64"]))
    hostile = Packed(dtype, (size,), coding, count, False, np.resize(np.frombuffer(some, np.uint8), whole))
    try:
        there = hostile.unpack()
    except InvalidUpdate:
        return
    assert (there.dtype, there.shape) == (np.dtype(dtype), (size,))
    if dtype != "float16" and (coding, dtype) != ("float64", "float32"):
        assert np.isfinite(there).all()
    assert np.count_nonzero(there) <= count


# Reading an update


def trained(dtype: Any = torch.float32) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a model before and after training: torch and numpy, packed and plain tensors."""
    weight, bias = torch.ones(300, 70, dtype=dtype), random((9,), "float64")
    start = {"w": weight, "b": bias, "steps": np.array(3), "on": np.True_}
    change = torch.from_numpy(random()).to(dtype)
    model = {"w": weight + change, "b": bias + 1, "steps": np.array(7), "on": np.False_}
    return model, start


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.bfloat16])
def test_packed_update_is_read_as_the_trained_model(dtype: Any) -> None:
    model, start = trained(dtype)
    there = Unpacked(Compressor(Compression("float16")).pack(model, start), start)
    check(there, like=start)
    assert (list(there), len(there)) == (list(model), 4)
    assert there["steps"] is model["steps"]
    for name in ("w", "b"):
        expected = torch.as_tensor(model[name]).double().numpy()
        np.testing.assert_allclose(torch.as_tensor(there[name]).double().numpy(), expected, rtol=3e-3, atol=3e-3)
    assert type(there["w"]) is (torch.Tensor if dtype is torch.bfloat16 else np.ndarray)


def test_packed_update_is_folded_like_a_plain_one() -> None:
    model, start = trained()
    means = WeightedMean(start), WeightedMean(start)
    for seed in range(3):
        update = Compressor(Compression("bfloat16"), seed).pack(model, start)
        means[0].fold(Unpacked(update, start), 1 + seed)
        means[1].fold(model, 1 + seed)
    one, other = [mean.finish() for mean in means]
    for name in start:
        np.testing.assert_allclose(np.asarray(one[name]), np.asarray(other[name]), rtol=0.01, atol=0.01)
    assert one["w"].dtype == torch.float32


def test_deltas_gives_the_changes() -> None:
    model, start = trained()
    there = Unpacked(Compressor(Compression()).pack(model, start), start, deltas=True)
    np.testing.assert_allclose(there["w"], (model["w"] - start["w"]).numpy(), rtol=1e-6)
    assert there["steps"] is model["steps"]


def test_plain_update_is_read_unchanged() -> None:
    model, start = trained()
    there = Unpacked(model, start)
    assert all(there[name] is model[name] for name in model)


def test_tensors_are_decoded_on_access_and_not_kept() -> None:
    start = {"w": np.zeros(200_000, np.float32)}
    broken = zipped(b"no frame")
    there = Unpacked({"w": broken}, start)
    assert "w" in there
    assert list(there) == ["w"]
    for _ in range(2):
        with pytest.raises(InvalidUpdate, match=r"^'w': its zstd frame cannot be read"):
            there["w"]
    good = Unpacked({"w": packed(random((200_000,)))}, start)
    assert good["w"] is not good["w"]


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (np.zeros((10, 1), np.float32), r"expected that of a float32 of shape \(10, 1\)"),
        (np.zeros(10, np.float64), r"expected that of a float64 of shape \(10,\)"),
        (np.zeros(10, np.int32), r"expected that of a int32 of shape \(10,\)"),
        (torch.zeros(10, dtype=torch.bfloat16), r"expected that of a bfloat16 of shape \(10,\)"),
    ],
)
def test_change_of_other_specs_is_refused(tensor: Any, expected: str) -> None:
    with pytest.raises(InvalidUpdate, match=rf"'w' is the change of a float32 of shape \(10,\); {expected}"):
        Unpacked({"w": made()}, {"w": tensor})


def test_change_of_an_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidUpdate, match="'v' is unexpected"):
        Unpacked({"v": made()}, {"w": np.zeros(10, np.float32)})


@pytest.mark.parametrize("make", [lambda w: {}, lambda w: {"w": w, "v": np.zeros(3)}])
def test_missing_or_extra_names_are_left_to_check(make: Callable[[Any], dict[str, Any]]) -> None:
    start = {"w": np.zeros(10, np.float32)}
    with pytest.raises(InvalidUpdate, match=r"missing|unexpected"):
        check(Unpacked(make(made()), start), like=start)
