from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import fl.tensors.blocks
from fl.aggregation.mean import WeightedMean
from fl.errors import InvalidUpdate
from fl.tensors.model import check
from netq.errors import NetqError

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-14, "complex64": 1e-6}


def folded(like: Any, *updates: tuple[Any, float]) -> dict[str, Any]:
    mean = WeightedMean(like)
    for model, weight in updates:
        mean.fold(model, weight)
    return mean.finish()


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> NDArray[Any]:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape) * 10, dtype)


# Values


@pytest.mark.parametrize("dtype", [*FLOATS, "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (300, 700)])
def test_mean_matches_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    arrays = [random(shape, dtype, seed) for seed in range(5)]
    weights = [1, 2.5, 3, 0.5, 10]
    mean = folded({"w": arrays[0]}, *[({"w": array}, weight) for array, weight in zip(arrays, weights, strict=True)])
    wide = "c16" if dtype.startswith("c") else "f8"
    expected = np.average([array.astype(wide) for array in arrays], axis=0, weights=weights)
    assert (mean["w"].dtype, mean["w"].shape) == (np.dtype(dtype), shape)
    tolerance = TOLERANCE.get(dtype, 1e-14)
    np.testing.assert_allclose(mean["w"], expected, rtol=tolerance, atol=20 * tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "bool", *INTEGERS])
def test_torch_and_numpy_mix_and_kinds_are_kept(dtype: str) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    mean = folded({"w": tensor}, ({"w": tensor}, 1), ({"w": tensor}, 2))["w"]
    assert type(mean) is torch.Tensor
    assert mean.dtype == tensor.dtype
    assert torch.equal(mean, tensor)
    if dtype != "bfloat16":
        assert torch.equal(folded({"w": tensor}, ({"w": tensor.numpy()}, 1))["w"], tensor)
        array = folded({"w": tensor.numpy()}, ({"w": tensor}, 1))["w"]
        assert type(array) is np.ndarray
        assert np.array_equal(array, tensor.numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_of_torch_only_are_averaged(dtype: str) -> None:
    kind = getattr(torch, dtype)
    one, two = [torch.linspace(low, 40, 70_000).to(kind) for low in (-3, 5)]
    mean = folded({"w": one}, ({"w": one}, 1), ({"w": two}, 3))["w"]
    expected = ((one.double() + 3 * two.double()) / 4).float().to(kind)
    assert mean.dtype == kind
    assert torch.equal(mean.view(torch.uint8), expected.view(torch.uint8)) or dtype == "bfloat16"
    assert torch.allclose(mean.float(), expected.float(), rtol=TOLERANCE["bfloat16"])


def test_scalar_counts_as_a_0_d_array() -> None:
    like = {"w": np.zeros((), "f4")}
    mean = folded(like, ({"w": like["w"] + np.float32(3)}, 1))["w"]
    assert type(mean) is np.ndarray
    assert (mean.dtype, mean.shape, mean.item()) == (np.float32, (), 3)


def test_parameters_that_require_grad_are_folded() -> None:
    model = dict(torch.nn.Linear(3, 2).named_parameters())
    mean = folded(model, (model, 1), (model, 1))
    assert torch.equal(mean["weight"], model["weight"])
    assert not mean["weight"].requires_grad


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16"])
def test_memory_layout_does_not_matter(dtype: str) -> None:
    values = torch.arange(400 * 300).remainder(100).reshape(400, 300).to(getattr(torch, dtype))
    transposed = values.t().contiguous().t()
    every_other = torch.stack([values, values], 2)[:, :, 0]
    for model in (transposed, every_other):
        assert not model.is_contiguous()
        assert torch.equal(folded({"w": values}, ({"w": model}, 1), ({"w": model}, 1))["w"], values)
    conjugate = torch.tensor([1 + 2j]).conj()
    assert folded({"w": conjugate}, ({"w": conjugate}, 1))["w"].tolist() == [1 - 2j]
    backwards = values.float().numpy()[::-1]
    assert np.array_equal(folded({"w": backwards}, ({"w": backwards}, 1))["w"], backwards)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_rounded_to_the_nearest(dtype: str) -> None:
    def array(*values: int) -> dict[str, Any]:
        return {"n": np.array(values, dtype)}

    mean = folded(array(0, 0), (array(1, 10), 1), (array(2, 11), 1), (array(2, 10), 1))
    assert mean["n"].tolist() == [2, 10]  # 5/3 and 31/3
    ends = np.iinfo(dtype).min, np.iinfo(dtype).max
    low, high = folded(array(0, 0), (array(*ends), 1), (array(*ends), 1))["n"].tolist()
    assert low == ends[0]
    assert ends[1] - 1024 * (np.dtype(dtype).itemsize == 8) * 2 <= high <= ends[1]


def test_bool_is_the_weighted_majority() -> None:
    def array(*values: bool) -> dict[str, Any]:
        return {"mask": np.array(values)}

    mean = folded(array(True) | {}, (array(True), 1), (array(False), 2), (array(True), 1.5))
    assert mean["mask"].tolist() == [True]
    assert folded(array(True), (array(True), 1), (array(False), 1))["mask"].tolist() == [False]


@given(st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), st.floats(2**-10, 2**20, width=32)), min_size=1, max_size=20))
def test_mean_matches_exact_arithmetic(updates: list[tuple[float, float]]) -> None:
    mean = folded({"w": np.zeros(1)}, *[({"w": np.array([value])}, weight) for value, weight in updates])
    total = sum((Fraction(weight) for _, weight in updates), Fraction())
    exact = sum((Fraction(value) * Fraction(weight) for value, weight in updates), Fraction()) / total
    scale = max(abs(value) for value, _ in updates)
    assert abs(Fraction(float(mean["w"][0])) - exact) <= Fraction(1e-14) * Fraction(scale)


@given(st.permutations(range(6)))
def test_order_changes_rounding_only(order: list[int]) -> None:
    like = {"w": random((50,), "float32")}
    one, other = [
        folded(like, *[({"w": random((50,), "float32", seed)}, seed + 1) for seed in seeds])["w"]
        for seeds in (range(6), order)
    ]
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_equal_updates_give_exactly_that_update(dtype: str) -> None:
    same = torch.from_numpy(random((1000,), "float64")).to(getattr(torch, dtype))
    assert torch.equal(folded({"w": same}, *[({"w": same}, 0.1 * n) for n in range(1, 40)])["w"], same)


def test_block_size_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [{"w": random((20, 30), "float32", seed), "t": random((30, 20), "float32", seed).T} for seed in range(4)]
    whole = folded(models[0], *[(model, 1.7) for model in models])
    for size in (1, 7, 64):
        monkeypatch.setattr(fl.tensors.blocks, "BLOCK", size)
        parts = folded(models[0], *[(model, 1.7) for model in models])
        assert all(np.array_equal(parts[name], whole[name]) for name in whole)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex64"])
def test_mean_of_finite_updates_is_finite(dtype: str) -> None:
    kind = getattr(torch, dtype)
    largest = torch.finfo(kind).max
    high, low = [{"w": torch.full((3,), sign * largest, dtype=kind)} for sign in (1, -1)]
    mean = folded(high, (high, 1), (low, 1), (high, 1e300), (low, 1e-300), (high, 1))["w"]
    assert torch.isfinite(mean).all()
    assert torch.allclose(mean.real.double(), high["w"].real.double(), rtol=1e-2)
    mean = folded(high, (high, 1), (low, 1))["w"]
    assert mean.abs().max() <= largest * 0.01


def test_weights_may_be_any_real_number() -> None:
    like = {"w": np.zeros(1)}
    mean = WeightedMean(like)
    for weight in (1, 2.5, np.int64(3), np.float32(0.5), Fraction(1, 2)):
        mean.fold(like, weight)  # type: ignore[arg-type]
    assert (mean.count, mean.weight) == (5, 7.5)


# Rounds and memory


def address(array: Any) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def test_result_keeps_its_memory_in_later_rounds() -> None:
    like: dict[str, Any] = {"w": np.zeros(100_000, "f4"), "v": torch.zeros(3)}
    mean = WeightedMean(like)
    tracemalloc.start()
    try:
        mean.fold({"w": np.full(100_000, 4, "f4"), "v": torch.ones(3)}, 2)
        first = mean.finish()
        assert tracemalloc.get_traced_memory()[1] < 600_000  # the update itself has 400,000; mappings do not count
    finally:
        tracemalloc.stop()
    assert (mean.count, mean.weight) == (0, 0.0)
    mean.fold({"w": np.full(100_000, 8, "f4"), "v": torch.ones(3) * 5}, 1)
    second = mean.finish()
    assert first["w"].tolist() == [4] * 100_000
    assert (second["w"] == 8).all()
    assert (first["v"].tolist(), second["v"].tolist()) == ([1] * 3, [5] * 3)
    assert address(first["w"]) != address(second["w"])
    once = address(first["w"])
    del first
    mean.fold(like, 1)
    assert address(mean.finish()["w"]) == once  # the first result had no references left


def test_result_is_writable() -> None:
    mean = WeightedMean({"w": np.zeros(100_000, "f4"), "t": torch.zeros(100_000)})
    mean.fold({"w": np.ones(100_000, "f4"), "t": torch.ones(100_000)}, 1)
    result = mean.finish()
    result["w"][:] = result["t"][:] = 7
    mean.fold({"w": np.ones(100_000, "f4"), "t": torch.ones(100_000)}, 1)
    assert (mean.finish()["w"] == 1).all()
    assert (result["t"] == 7).all()


def test_changes_of_blocks_go_into_the_result() -> None:
    start: dict[str, Any] = {
        "w": np.arange(200_000, dtype="f4"),
        "b": torch.full((3,), 2.0, dtype=torch.bfloat16),
        "n": np.array(5),
    }
    mean = WeightedMean(start)
    mean.fold({"w": start["w"] + 1, "b": start["b"] * 2, "n": np.array(9)}, 3)
    seen = 0
    for block in mean.blocks(start):
        assert block.value.dtype == block.model.dtype == np.float32
        np.testing.assert_array_equal(block.value, block.model * 2 if block.name == "b" else block.model + 1)
        block.value[:] = block.model - 1
        seen += block.stop - block.start
    assert seen == 200_003  # without integers
    result = mean.finish()
    np.testing.assert_array_equal(result["w"], start["w"] - 1)
    assert result["b"].tolist() == [1.0] * 3
    assert result["n"] == 9


def test_fold_keeps_no_reference_to_the_update() -> None:
    update: dict[str, Any] = {"w": np.ones(3), "t": torch.ones(3)}
    mean = WeightedMean(update)
    mean.fold(update, 1)
    update["w"][...] = 7
    update["t"][...] = 7
    result = mean.finish()
    assert result["w"].tolist() == [1] * 3
    assert result["t"].tolist() == [1] * 3


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "i8"])
def test_fold_and_check_need_little_memory(dtype: str, order: Any) -> None:
    model = {"w": np.ones((1500, 1000), dtype, order=order)}
    mean = WeightedMean(model)
    mean.fold(model, 1)
    tracemalloc.start()
    try:
        mean.fold(model, 1)
        check(model, model)
        assert tracemalloc.get_traced_memory()[1] < model["w"].nbytes / 1.5
    finally:
        tracemalloc.stop()


def test_finish_without_updates_is_refused() -> None:
    mean = WeightedMean({"w": np.zeros(2)})
    with pytest.raises(InvalidUpdate, match="no update was folded"):
        mean.finish()
    mean.fold({"w": np.zeros(2)}, 1)
    mean.reset()
    with pytest.raises(InvalidUpdate, match="no update was folded"):
        mean.finish()


# Refusals

LIKE: dict[str, Any] = {"w": np.zeros((2, 3), "f4"), "steps": torch.zeros((), dtype=torch.int64)}
GOOD: dict[str, Any] = {"w": np.ones((2, 3), "f4"), "steps": torch.ones((), dtype=torch.int64)}
BAD: dict[str, tuple[Any, str]] = {
    "no mapping": ([1, 2], "an update is a list; expected a mapping"),
    "None": (None, "an update is a NoneType"),
    "missing": ({"w": GOOD["w"]}, r"'steps' is missing; expected int64 of shape \(\)"),
    "another name": (
        {"w": GOOD["w"], "step": GOOD["steps"]},
        "'steps' is missing; .*; the update has 'step', which the model does not",
    ),
    **{
        f"the prefix {prefix}": (
            {f"{prefix}{name}": tensor for name, tensor in GOOD.items()},
            f"'w' is missing; .*; the update has '{prefix}w', which differs by a prefix, as of a wrapper",
        )
        for prefix in ("_module.", "_orig_mod.", "module.")
    },
    "unexpected": (GOOD | {"v": GOOD["w"]}, "'v' is unexpected"),
    "a key of no text": (GOOD | {10**5000: GOOD["w"]}, "a key of type int is unexpected"),
    "a long key": (GOOD | {"v" * 9000: GOOD["w"]}, "^.{,100}$"),
    "shape": (
        GOOD | {"w": np.ones((3, 2), "f4")},
        r"'w' is float32 of shape \(3, 2\); expected float32 of shape \(2, 3\)",
    ),
    "too few dimensions": (GOOD | {"w": np.ones(6, "f4")}, "'w' is float32 of shape"),
    "broadcastable": (GOOD | {"w": np.ones((1, 3), "f4")}, "'w' is float32 of shape"),
    "dtype": (GOOD | {"w": np.ones((2, 3), "f8")}, "'w' is float64 .*; expected float32"),
    "torch dtype": (GOOD | {"w": torch.ones(2, 3, dtype=torch.bfloat16)}, "'w' is bfloat16 .*; expected float32"),
    "byte order": (GOOD | {"w": np.ones((2, 3), ">f4")}, "'w' is >f4 .*; expected float32"),
    "a list": (GOOD | {"w": [[1.0] * 3] * 2}, "'w': a list; expected a numpy array or a dense torch tensor"),
    "None for a tensor": (GOOD | {"w": None}, "'w': a NoneType; expected"),
    "a number": (GOOD | {"steps": 1}, "'steps': a int; expected"),
    "sparse": (GOOD | {"w": torch.ones(2, 3).to_sparse()}, "'w': a Tensor; expected .* dense"),
    "meta": (GOOD | {"w": torch.ones(2, 3, device="meta")}, "'w': a Tensor; expected"),
    "NaN": (GOOD | {"w": np.full((2, 3), math.nan, "f4")}, "'w' holds NaN or infinity"),
    "infinity": (GOOD | {"w": torch.tensor([[1, 2, math.inf], [3, 4, 5]])}, "'w' holds NaN or infinity"),
    "both infinities": (GOOD | {"w": torch.tensor([[1, -math.inf, math.inf], [3, 4, 5]])}, "'w' holds NaN or infinity"),
}


@pytest.mark.parametrize(("model", "match"), BAD.values(), ids=BAD)
def test_unfitting_model_is_refused_and_leaves_the_mean(model: Any, match: str) -> None:
    with pytest.raises(InvalidUpdate, match=match):
        check(model, LIKE)
    mean = WeightedMean(LIKE)
    mean.fold(GOOD, 2)
    with pytest.raises(InvalidUpdate, match=match):
        mean.fold(model, 1)
    assert (mean.count, mean.weight) == (1, 2.0)
    result = mean.finish()
    assert all((result[name] == GOOD[name]).all() for name in GOOD)


def test_fitting_model_passes_the_check() -> None:
    check(GOOD, LIKE)
    check(dict(reversed(GOOD.items())), LIKE)
    check(LIKE, GOOD)
    check({}, {})
    check({"w": np.full(9, np.finfo("f4").max)}, {"w": np.zeros(9, "f4")})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "float8_e5m2"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 65_535, 65_536, 99_999])
def test_single_non_finite_value_is_found(dtype: str, value: float, at: int) -> None:
    like = {"w": torch.zeros(100_000).to(getattr(torch, dtype))}
    update = torch.ones(100_000)
    update[at] = value
    with pytest.raises(InvalidUpdate, match="'w' holds NaN or infinity"):
        check({"w": update.to(getattr(torch, dtype))}, like)


def test_bad_last_tensor_leaves_the_first_unfolded() -> None:
    mean = WeightedMean({"a": np.zeros(3), "z": np.zeros(3)})
    mean.fold({"a": np.ones(3), "z": np.ones(3)}, 1)
    with pytest.raises(InvalidUpdate, match="'z'"):
        mean.fold({"a": np.full(3, 9.0), "z": np.array([0, 0, math.nan])}, 1)
    assert mean.finish()["a"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "weight", [0, -1, math.nan, math.inf, -math.inf, 10**400, None, "1", b"1", 1j, [1], np.ones(1), np.float32("inf")]
)
def test_wrong_weights_are_refused(weight: Any) -> None:
    mean = WeightedMean(GOOD)
    with pytest.raises(InvalidUpdate, match=r"the weight is .* expected a finite number above 0"):
        mean.fold(GOOD, weight)
    assert (mean.count, mean.weight) == (0, 0.0)


def test_weights_whose_sum_overflows_are_refused() -> None:
    mean = WeightedMean(GOOD)
    mean.fold(GOOD, 1.7e308)
    with pytest.raises(InvalidUpdate, match="exceeds a float"):
        mean.fold(LIKE, 1.7e308)
    assert (mean.count, mean.weight) == (1, 1.7e308)
    assert (mean.finish()["w"] == 1).all()


@pytest.mark.parametrize("array", [np.zeros(2, "U3"), np.array([None]), np.zeros(2, "g"), np.zeros(2, ">f4")])
def test_dtypes_without_a_mean_are_refused(array: Any) -> None:
    with pytest.raises(InvalidUpdate, match=r"'w': .* has no mean"):
        WeightedMean({"w": array})


def test_invalid_update_is_a_netq_error_and_a_value_error() -> None:
    assert issubclass(InvalidUpdate, NetqError)
    assert issubclass(InvalidUpdate, ValueError)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int64", "int8", "bool", "complex64"])
def test_partial_of_every_dtype_merges(dtype: str) -> None:
    """Two halves, each folded elsewhere, have the mean of all. 64-bit integers are exact beyond 2**53."""
    tensors = [torch.tensor([1, 0, 1, value % 2]).to(getattr(torch, dtype)) for value in range(4)]
    if dtype == "int64":
        tensors = [each + 2**60 for each in tensors]
    whole, parts, here = (WeightedMean({"w": tensors[0]}) for _ in range(3))
    for number, tensor in enumerate(tensors):
        whole.fold({"w": tensor}, 1.0)
        parts.fold({"w": tensor}, 1.0)
        if number % 2:
            here.merge(parts.partial())
    assert torch.equal(here.finish()["w"], whole.finish()["w"])
