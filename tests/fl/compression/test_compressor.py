"""The client's compressor: its text form, what it sends, and that error feedback loses no part of a change."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import fl
from fl.compression.compressor import CODINGS, Compression, Compressor
from fl.compression.packed import Packed, Unpacked
from fl.errors import InvalidUpdate
from fl.tensors.model import check
from tests.fl.federation import A, B, Federation

ALL = (*CODINGS, None)
NOT_PACKED = ("bool", "uint8", "int32", "int64", "complex64")


def random(shape: tuple[int, ...] = (300, 70), dtype: str = "float32", seed: int = 0) -> NDArray[Any]:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def trained(change: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    start = random(change.shape, "float64", seed=99).astype(change.dtype)
    return {"w": start + change}, {"w": start}


def sent(compressor: Compressor, change: NDArray[Any]) -> NDArray[Any]:
    """Return the change that the server gets if the start is zeros."""
    packed = compressor.pack({"w": change}, {"w": np.zeros_like(change)})["w"]
    assert isinstance(packed, Packed)
    return packed.unpack()


def distance(one: Any, other: Any) -> float:
    return float(np.linalg.norm(np.subtract(one, other, dtype=float)) / np.linalg.norm(np.asarray(other, dtype=float)))


# Text form


@pytest.mark.parametrize(
    ("text", "compression"),
    [
        ("none", Compression()),
        ("int8", Compression("int8")),
        ("int8, top_k=0.1, zstd=3", Compression("int8", 0.1, 3)),
        ("top_k=1.0", Compression(top_k=1)),
        ("zstd=19, error_feedback=false", Compression(zstd=19, error_feedback=False)),
    ],
)
def test_text_form_of_compressions(text: str, compression: Compression) -> None:
    assert Compression.parse(text) == compression
    assert str(compression) == text


@given(
    st.sampled_from(ALL),
    st.none() | st.floats(0, 1, exclude_min=True),
    st.none() | st.integers(1, 19),
    st.booleans(),
)
def test_text_round_trip(dtype: Any, top_k: Any, zstd: Any, error_feedback: bool) -> None:
    compression = Compression(dtype, top_k, zstd, error_feedback)
    assert Compression.parse(str(compression)) == compression


@pytest.mark.parametrize(
    "text", [" int8 ,zstd = 3,top_k= 1e-1", "top_k=.1,zstd=3,int8", "zstd=3, error_feedback=true, top_k=0.10, int8"]
)
def test_text_ignores_spaces_and_order(text: str) -> None:
    assert Compression.parse(text) == Compression("int8", 0.1, 3)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "dtype: ''"),
        ("int9", "dtype: 'int9'; expected None or one of float16, bfloat16, int8, int4"),
        ("float32", "dtype: 'float32'"),
        ("int8, none", "compression: 'int8, none'"),
        ("none, int8", "compression: 'none, int8'"),
        ("int8, int4", "compression: 'int8, int4'; expected \"none\", or a dtype, top_k="),
        ("int8,", "compression: 'int8,'"),
        ("int8, level=3", "compression: 'int8, level=3'"),
        ("zstd=3, zstd=4", "compression: 'zstd=3, zstd=4'"),
        ("top_k=much", "top_k: 'much'; expected None, or more than 0 and 1 at most"),
        ("top_k=0", "top_k: 0.0"),
        ("top_k=nan", "top_k: nan"),
        ("top_k=1.01", "top_k: 1.01"),
        ("zstd=3.5", "zstd: '3.5'; expected None, or a whole number of 1 to 19"),
        ("zstd=20", "zstd: 20"),
        ("zstd=0", "zstd: 0"),
        ("error_feedback=yes", "error_feedback: 'yes'; expected True or False"),
    ],
)
def test_wrong_text_is_refused_and_named(text: str, what: str) -> None:
    with pytest.raises(ValueError) as caught:
        Compression.parse(text)
    assert str(caught.value).startswith(what)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"dtype": 8}, "dtype: 8"),
        ({"dtype": ["int8"]}, "dtype: "),
        ({"top_k": "0.1"}, "top_k: '0.1'"),
        ({"top_k": True}, "top_k: True"),
        ({"zstd": 3.0}, "zstd: 3.0"),
        ({"zstd": True}, "zstd: True"),
        ({"error_feedback": 1}, "error_feedback: 1"),
    ],
)
def test_wrong_option_is_refused_and_named(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError) as caught:
        Compression(**options)
    assert str(caught.value).startswith(what)


def test_parse_refuses_other_types() -> None:
    with pytest.raises(ValueError, match="compression: None; expected"):
        Compression.parse(None)  # type: ignore[arg-type]


# Packing


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (7, 3), (300, 700)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("coding", ALL)
def test_change_arrives_within_tolerance(coding: str | None, dtype: str, shape: tuple[int, ...], kind: str) -> None:
    model, start = trained(random(shape, dtype) / 8)
    change = np.subtract(model["w"], start["w"], dtype=float)
    if kind == "torch":
        model, start = [{name: torch.as_tensor(tensor) for name, tensor in each.items()} for each in (model, start)]
    packed = Compressor(Compression(coding), 0).pack(model, start)["w"]
    assert isinstance(packed, Packed)
    there = packed.unpack()
    assert (there.dtype, there.shape) == (np.dtype(dtype), shape)
    if change.size:
        known = {"float16": 1e-3, "bfloat16": 5e-3, "int8": 0.02, "int4": 0.3}
        exact = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-12}[dtype]
        assert distance(there, change) < (exact if coding is None else known[coding])
    result = Unpacked({"w": packed}, start)["w"]
    assert type(result) is np.ndarray
    assert (result.dtype, result.shape) == (there.dtype, there.shape)


@pytest.mark.parametrize("dtype", NOT_PACKED)
def test_other_dtypes_are_unchanged(dtype: str) -> None:
    model: dict[str, Any] = {"a": np.ones(3, dtype), "t": torch.ones(3, dtype=getattr(torch, dtype)), "w": np.ones(2)}
    there = Compressor(Compression("int8")).pack(model, {**model, "w": np.zeros(2)})
    assert list(there) == list(model)
    assert there["a"] is model["a"]
    assert there["t"] is model["t"]


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (7, 3), (300, 700)])
@pytest.mark.parametrize("text", [*CODINGS, "none", "zstd=1", "top_k=0.5", "int8, top_k=0.5, zstd=3"])
@pytest.mark.parametrize("deltas", [False, True])
def test_change_of_bfloat16_arrives_within_tolerance(text: str, shape: tuple[int, ...], deltas: bool) -> None:
    start = {"w": torch.as_tensor(random(shape)).bfloat16()}
    model = {"w": start["w"] + torch.as_tensor(random(shape, seed=1)).bfloat16() / 8}
    before = model["w"].clone()
    compressor = Compressor(Compression.parse(text), 0)
    packed = compressor.pack(model, start)["w"]
    assert isinstance(packed, Packed)
    result = Unpacked({"w": packed}, start, deltas=deltas)
    check(result, like=start)  # as the server's strategies do
    assert (result["w"].dtype, tuple(result["w"].shape)) == (torch.bfloat16, shape)
    assert torch.equal(model["w"], before)
    if result["w"].numel():
        change = (model["w"].double() - start["w"].double()).numpy()
        found = (result["w"].double() - (0 if deltas else start["w"].double())).numpy()
        known = {"int8": 0.03, "int4": 0.3, "top_k=0.5": 0.5, "int8, top_k=0.5, zstd=3": 0.5}
        assert distance(found, change) < known.get(text, 0.02)
        residual = compressor.residuals["w"]
        np.testing.assert_allclose(packed_change(packed) + residual, change.flatten(), rtol=1e-5, atol=1e-6)


def packed_change(packed: Packed) -> NDArray[Any]:
    """The flat change, in float32."""
    flat = np.zeros(packed.size, np.float32)
    for where, values in packed.blocks():
        flat[where] = values
    return flat


def test_bfloat16_is_packed_to_the_size_of_float32() -> None:
    start = random((1000,))
    for text in ("int8", "int4", "top_k=0.1", "int8, top_k=0.1, zstd=3"):
        sizes = []
        for model in (torch.as_tensor(start), torch.as_tensor(start).bfloat16()):
            packed = Compressor(Compression.parse(text), 0).pack({"w": model * 2}, {"w": model})["w"]
            sizes.append(packed.nbytes)
        assert sizes[1] <= sizes[0] + 20  # zstd finds a little more or less


def test_federation_in_bfloat16_comes_as_near_as_without_packing() -> None:
    target = torch.linspace(-1, 1, 1000)

    def train(model: Any, config: object) -> fl.Update:
        model["w"] += (0.5 * (target - model["w"].float())).bfloat16()
        return fl.Update(model, 1)

    def error(compression: str | None) -> float:
        start = {"w": torch.zeros(1000, dtype=torch.bfloat16)}
        with Federation(start, min_clients=2, strategy=fl.FedAvg(compression=compression)) as federation:
            for client in (A, B):
                federation.join(client, train)
            for _ in range(10):
                federation.round(2)
            last: Any = federation.server.model["w"]
            return float((last.float() - target).abs().mean())

    plain = error(None)
    assert plain < 0.01
    for compression in ("float16", "bfloat16", "int8", "int4", "int8, top_k=0.5, zstd=3"):
        assert error(compression) < 2 * plain


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_tensors_of_torch_only_dtypes_are_unchanged(dtype: str) -> None:
    model = {"t": torch.ones(3).to(getattr(torch, dtype))}
    assert Compressor(Compression("int8")).pack(model, model)["t"] is model["t"]


@pytest.mark.parametrize("text", ["none", "int8", "top_k=0.1"])
def test_layouts_do_not_matter_and_inputs_stay_unchanged(text: str) -> None:
    plain = random((40, 60)), random((40, 60), seed=1)
    wide = random((80, 120), seed=2)
    wide[::2, ::2] = plain[0]
    layouts: list[tuple[Any, Any]] = [
        (plain[0], np.asfortranarray(plain[1])),
        (wide[::2, ::2], plain[1]),
        (plain[0][::-1].copy()[::-1], torch.from_numpy(plain[1])),
        (torch.nn.Parameter(torch.from_numpy(plain[0].T.copy()).T), plain[1].T.copy().T),
    ]
    expected = Compressor(Compression.parse(text), 5).pack({"w": plain[0]}, {"w": plain[1]})["w"].data
    for new, old in layouts:
        before = [np.array(each.tolist()) for each in (new, old)]
        there = Compressor(Compression.parse(text), 5).pack({"w": new}, {"w": old})["w"]
        np.testing.assert_array_equal(there.data, expected)
        for each, same in zip((new, old), before, strict=True):
            assert each.tolist() == same.tolist()


def test_broadcast_start_is_accepted() -> None:
    model = {"w": random((200, 500))}
    there = Compressor(Compression()).pack(model, {"w": np.broadcast_to(np.float32(1), (200, 500))})
    np.testing.assert_array_equal(there["w"].unpack(), model["w"] - 1)


def test_read_only_model_can_be_packed() -> None:
    model = {"w": random()}
    model["w"].flags.writeable = False
    assert (
        distance(Compressor(Compression("int8"), 0).pack(model, {"w": model["w"] * 0})["w"].unpack(), model["w"]) < 0.02
    )


@pytest.mark.parametrize(
    ("text", "times"),
    [("float16", 1.99), ("bfloat16", 2), ("int8", 3.96), ("int4", 7.8), ("top_k=0.05, int8", 40), ("int4, zstd=3", 9)],
)
def test_packed_size_by_coding(text: str, times: float) -> None:
    change = random((100_000,))
    packed = Compressor(Compression.parse(text), 0).pack({"w": change}, {"w": change * 0})["w"]
    assert change.nbytes / packed.nbytes >= times


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 1])
def test_top_k_sends_the_largest_elements_only(share: float) -> None:
    change = random((10_000,))
    there = sent(Compressor(Compression(top_k=share)), change)
    order = np.argsort(-np.abs(change))
    count = round(share * change.size)
    np.testing.assert_array_equal(there[order[:count]], change[order[:count]])
    assert not there[order[count:]].any()


@pytest.mark.parametrize("size", [1, 2, 9])
def test_top_k_sends_at_least_one_element(size: int) -> None:
    assert np.count_nonzero(sent(Compressor(Compression(top_k=0.001)), random((size,)))) == 1


@pytest.mark.parametrize("text", ["none", "int8", "int4", "float16", "top_k=0.1", "int8, top_k=0.1, zstd=3"])
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3e-5])
def test_constant_change(text: str, value: float) -> None:
    change = np.full(3000, value, np.float32)
    there = sent(Compressor(Compression.parse(text), 0), change)
    places = np.flatnonzero(there)
    assert places.tolist() == ([] if value == 0 else list(range(300 if "top_k" in text else 3000)))
    np.testing.assert_allclose(there[places], value, rtol=0.15)


def test_zstd_is_skipped_if_it_does_not_shorten() -> None:
    compressor = Compressor(Compression(zstd=1))
    packed = compressor.pack({"w": random((4,)), "z": np.ones(9999)}, {"w": np.zeros(4, "f4"), "z": np.zeros(9999)})
    assert (packed["w"].zstd, packed["z"].zstd) == (False, True)
    assert packed["z"].nbytes < 1000


@pytest.mark.parametrize("text", ["int8", "int4, top_k=0.2", "int8, zstd=1"])
def test_same_seed_packs_alike(text: str) -> None:
    def rounds(seed: int) -> list[bytes]:
        compressor = Compressor(Compression.parse(text), seed)
        updates = [compressor.pack({"w": random(seed=n)}, {"w": random(seed=9)})["w"] for n in range(3)]
        return [update.data.tobytes() for update in updates]

    assert rounds(1) == rounds(1)
    assert rounds(1) != rounds(2)


def test_clients_round_differently() -> None:
    one, other = [sent(Compressor(Compression("int8")), random()) for _ in range(2)]
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("magnitude", [1e-30, 1e-7, 7e4, 1e30, 8e37])
@pytest.mark.parametrize("coding", ALL)
def test_no_magnitude_overflows_or_vanishes(coding: str | None, magnitude: float) -> None:
    change = np.clip(random(), -1, 1) * np.float32(magnitude)
    there = sent(Compressor(Compression(coding), 0), change)
    assert np.isfinite(there).all()
    assert distance(there / magnitude, change / magnitude) < 0.25


def test_change_of_float16_may_exceed_its_range() -> None:
    model, start = {"w": np.full(10, 6e4, np.float16)}, {"w": np.full(10, -6e4, np.float16)}
    packed = Compressor(Compression("int8"), 0).pack(model, start)
    np.testing.assert_allclose(Unpacked(packed, start)["w"], 6e4, rtol=0.01)


# Error feedback


@pytest.mark.parametrize("text", ["int4", "bfloat16", "top_k=0.1", "int8, top_k=0.05", "int4, top_k=0.05, zstd=1"])
def test_residual_is_sent_later(text: str) -> None:
    compressor = Compressor(Compression.parse(text), 0)
    change, total, errors = random((2000,)), np.zeros(2000), []
    for count in range(1, 81):
        total += sent(compressor, change)
        errors.append(distance(total, count * change))
    assert errors[-1] < max(0.3 * errors[19], 1e-5)  # falls as 1 / rounds
    assert errors[-1] < 0.6


def test_sent_plus_residual_is_the_sum_of_changes() -> None:
    compressor = Compressor(Compression("int8", top_k=0.1), 0)
    changes = [random((2000,), seed=seed) for seed in range(20)]
    total = np.sum([sent(compressor, change) for change in changes], axis=0, dtype=float)
    rest = sent(Compressor(Compression()), np.sum(changes, axis=0) - total.astype("f4"))
    for _ in range(200):  # without further change
        total += sent(compressor, np.zeros(2000, "f4"))
    assert distance(total, np.sum(changes, axis=0, dtype=float)) < 1e-3
    assert np.linalg.norm(rest) > 1


@pytest.mark.parametrize("text", ["top_k=0.1, error_feedback=false", "bfloat16, error_feedback=false"])
def test_without_error_feedback_there_is_no_residual(text: str) -> None:
    compressor = Compressor(Compression.parse(text))
    first, second = sent(compressor, random()), sent(compressor, random())
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("text", ["none", "top_k=1", "zstd=1"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lossless_packing_leaves_no_residual(text: str, dtype: str) -> None:
    compressor = Compressor(Compression.parse(text))
    tracemalloc.start()
    try:
        change = random((2**18,), dtype)
        for _ in range(2):
            np.testing.assert_array_equal(sent(compressor, change), change)
        assert tracemalloc.get_traced_memory()[0] < 1.2 * change.nbytes
    finally:
        tracemalloc.stop()


def test_reset_drops_the_residual() -> None:
    compressor = Compressor(Compression(top_k=0.1))
    first = sent(compressor, random())
    assert not np.array_equal(sent(compressor, random()), first)
    compressor.reset()
    np.testing.assert_array_equal(sent(compressor, random()), first)


def test_residual_of_another_shape_is_ignored() -> None:
    compressor = Compressor(Compression(top_k=0.1))
    sent(compressor, random((50,)))
    np.testing.assert_array_equal(sent(compressor, random()), sent(Compressor(Compression(top_k=0.1)), random()))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("text", ["none", "int8", "float16", "top_k=0.1"])
def test_non_finite_change_is_refused_and_residual_kept(text: str, dtype: str, value: float) -> None:
    one, other = [Compressor(Compression.parse(text), 3) for _ in range(2)]
    start = {"a": np.zeros(500, dtype), "w": np.zeros((30, 50), dtype)}
    good = {"a": random((500,), dtype), "w": random((30, 50), dtype)}
    bad = {"a": random((500,), dtype, 1), "w": good["w"].copy()}
    bad["w"][29, 49] = value
    for compressor in (one, other):
        compressor.pack(good, start)
    with pytest.raises(InvalidUpdate, match=r"'w' has changed by NaN, infinity or more than .* diverged") as caught:
        one.pack(bad, start)
    assert np.geterr()["over"] == "warn", caught  # although its frames are still alive
    for there, expected in zip(one.pack(good, start).values(), other.pack(good, start).values(), strict=True):
        assert np.array_equal(there.data, expected.data)


@pytest.mark.parametrize(
    ("text", "dtype"), [("none", "float32"), ("int8", "float32"), ("int8", "float64"), ("top_k=0.1", "float64")]
)
def test_change_too_large_to_pack_is_refused(text: str, dtype: str) -> None:
    far = np.array([3e38] * 3, dtype) if dtype == "float32" else np.array([1e300] * 3)
    with pytest.raises(InvalidUpdate, match=r"more than .*, which cannot be packed"):
        Compressor(Compression.parse(text)).pack({"w": far}, {"w": -far})


def test_change_too_large_with_residual_is_refused() -> None:
    compressor = Compressor(Compression(top_k=0.1))
    far = np.full(100, 8e37, np.float32)
    sent(compressor, far)
    with pytest.raises(InvalidUpdate, match=r"more than 8\.51e\+37"):
        sent(compressor, far)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ({}, "'w' is missing"),
        ({"w": np.zeros(3), "v": np.zeros(3)}, "'v' is unexpected"),
        ({"w": np.zeros(4)}, r"'w' is float64 of shape \(4,\); expected float64 of shape \(3,\)"),
        ({"w": np.zeros(3, "f4")}, "'w' is float32"),
        ({"w": [0.0, 0.0, 0.0]}, "'w': a list"),
    ],
)
def test_model_unlike_its_start_is_refused(model: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidUpdate, match=what):
        Compressor(Compression("int8")).pack(model, {"w": np.zeros(3)})


@pytest.mark.parametrize("text", ["int8", "int4", "int8, top_k=0.05", "float16, top_k=0.05"])
def test_packing_needs_residual_and_result_memory_only(text: str) -> None:
    tensors = {"a": random((2**20,)), "b": random((2**20,), seed=1)}
    start = {name: tensor * 0 for name, tensor in tensors.items()}
    compressor = Compressor(Compression.parse(text), 0)
    tracemalloc.start()
    try:
        packed = compressor.pack(tensors, start)
        kept = 2 * 2**20 * 4 + sum(each.nbytes for each in packed.values())
        assert tracemalloc.get_traced_memory()[0] < kept + 100_000
        assert tracemalloc.get_traced_memory()[1] < kept + 2**20 * 4 / 2  # half a tensor
    finally:
        tracemalloc.stop()


def test_zstd_without_its_library_is_refused_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert Compressor(Compression("int8")).compression.zstd is None
    with pytest.raises(ImportError, match=r"zstd needs zstandard: pip install zstandard"):
        Compressor(Compression(zstd=3))
