"""Updates as whole numbers: their sum is that of exact arithmetic, and what does not fit is cut off and counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl.errors import InvalidUpdate
from fl.secure.layout import Layout, Summed
from fl.secure.terms import ranges
from fl.secure.words import Words
from fl.tensors.spec import specs_of

FLOATS = ["float16", "float32", "float64"]


def layout(start: Any, clients: int, most: int = 1, metrics: Sequence[str] = ()) -> Layout:
    largest = {name: max(1.0, float(np.abs(np.asarray(tensor.tolist())).max())) for name, tensor in start.items()}
    return Layout(specs_of(start), {name: 16 * each for name, each in largest.items()}, metrics, clients, most)


def summed(
    start: Any, updates: Sequence[Any], most: int = 1, metrics: Sequence[str] = (), examples: Any = None
) -> Summed:
    """Return the sum of updates. examples: each client's number of them, and its metrics."""
    form = layout(start, len(updates), most, metrics)
    total = Words.zeros(form.small, form.large)
    for at, update in enumerate(updates):
        number, values = examples[at] if examples else (1, {})
        total.add(form.encode(start, update, number, values))
    return form.decode(start, total)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("clients", [2, 3, 100, 5000])
def test_the_mean_of_floats_is_that_of_the_updates(dtype: str, clients: int) -> None:
    random = np.random.default_rng(3)
    start = {"w": random.normal(size=(7, 5)).astype(dtype)}
    updates = [{"w": start["w"] + random.normal(size=(7, 5)).astype(dtype)} for _ in range(clients)]
    found = summed(start, updates)
    expected = np.mean([update["w"].astype(np.float64) for update in updates], axis=0)
    step = 16 * float(np.abs(start["w"]).max()) / ((2**31 - 1) / clients)
    assert found.model["w"].dtype == dtype
    assert np.abs(found.model["w"] - expected).max() <= step + 4 * float(np.finfo(dtype).eps) * np.abs(expected).max()
    assert (found.examples, found.clipped) == (clients, 0.0)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("clients", "most"), [(3, 1), (4, 1), (8, 1), (16, 1), (4, 2**10), (5, 1000)])
def test_whole_numbers_next_to_the_bound_do_not_wrap_around(clients: int, most: int, sign: int) -> None:
    """The bound as a float is a power of two, which the sum of all has no room for."""
    start = {"n": np.zeros(3, np.int64)}
    bound = (2**63 - 1) // (clients * most)
    changes = np.array([bound, bound + 1, bound + 300])
    found = summed(start, [{"n": sign * changes}] * clients, most, examples=[(most, {})] * clients)
    assert found.model["n"] == pytest.approx(sign * np.full(3, bound), rel=1e-12)
    assert found.clipped == 2 / 3


@given(st.data())
def test_whole_numbers_are_summed_exactly(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["int8", "uint8", "int32", "uint32", "int64"]))
    bounds = np.iinfo(dtype)
    low, high = max(bounds.min, -(2**50)), min(bounds.max, 2**50)
    of = arrays.arrays(dtype, 4, elements=st.integers(low, high))
    start = {"n": data.draw(of)}
    updates = [{"n": data.draw(of)} for _ in range(3)]
    found = summed(start, updates)
    changes = [update["n"].astype(object) - start["n"].astype(object) for update in updates]
    exact = sum(changes)  # of Python's integers
    expected = [int(np.rint(float(before) + int(change) / 3)) for before, change in zip(start["n"], exact, strict=True)]
    assert [int(each) for each in found.model["n"]] == pytest.approx(expected, abs=0 if high < 2**31 else 1)


def test_bools_are_true_where_more_than_half_of_the_weight_is() -> None:
    start = {"b": np.array([False, False, True])}
    updates = [{"b": np.array(each)} for each in ([True, True, False], [True, False, True], [False, False, False])]
    assert summed(start, updates).model["b"].tolist() == [True, False, False]


def test_complex_numbers_have_two_words() -> None:
    start = {"c": np.zeros(3, np.complex64)}
    updates = [{"c": np.array([1 + 2j, 0, -1j], np.complex64)}, {"c": np.array([3, 4j, 1j], np.complex64)}]
    assert summed(start, updates).model["c"] == pytest.approx([2 + 1j, 2j, 0], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_tensors_of_torch(dtype: torch.dtype) -> None:
    start = {"t": torch.zeros(4, dtype=dtype)}
    updates = [{"t": torch.tensor([1, 0, 1, 1]).to(dtype)} for _ in range(4)]
    found = summed(start, updates).model["t"]
    assert found.dtype == dtype
    assert found.float().tolist() == pytest.approx([1, 0, 1, 1], abs=1e-6)


def test_weights_are_numbers_of_examples_up_to_a_bound() -> None:
    start = {"w": np.zeros(2, np.float32), "n": np.zeros(1, np.int64)}
    updates = [{"w": np.full(2, value, np.float32), "n": np.array([whole])} for value, whole in ((1, 10), (2, 20))]
    found = summed(start, updates, most=100, examples=[(30, {}), (500, {})])
    assert found.examples == 130
    assert found.model["w"] == pytest.approx([(30 * 1 + 100 * 2) / 130] * 2, abs=1e-5)
    assert found.model["n"].tolist() == [round((30 * 10 + 100 * 20) / 130)]


def test_metrics_are_means_over_the_clients_that_have_them() -> None:
    start = {"w": np.zeros(2, np.float32)}
    said = [(1, {"loss": 0.5, "other": 7.0}), (3, {"loss": -1.5}), (4, {"loss": float("nan")})]
    found = summed(start, [start] * 3, most=10, metrics=("loss", "absent"), examples=said)
    assert found.metrics == {"loss": pytest.approx((0.5 - 4.5) / 4)}


def test_what_is_larger_than_the_range_is_cut_off_and_counted() -> None:
    start = {"w": np.array([0, 0, 0, 2], np.float32)}  # the range is 16 times 2
    updates = [{"w": np.array([100, 5, -100, 2], np.float32)}, start]
    found = summed(start, updates)
    assert found.model["w"] == pytest.approx([16, 2.5, -16, 2], abs=1e-5)
    assert found.clipped == 2 / 8


def test_ranges_follow_the_largest_elements_of_what_is_sent() -> None:
    model: dict[str, Any] = {
        "w": np.array([3, -4], np.float32),
        "bias": np.zeros(2, np.float32),
        "running_mean": np.zeros(2),
        "running_var": np.full(2, 9.0),
        "steps": np.array(3),
        "mask": np.ones(2),
        "empty": np.zeros(0),
    }
    roles: Any = {"running_mean": "averaged", "running_var": "averaged", "steps": "averaged", "mask": "constant"}
    expected = {"w": 64.0, "bias": 1.0, "running_mean": 1024.0, "running_var": 9216.0, "empty": 1.0}
    assert ranges(model, roles, 16.0) == expected


def test_small_changes_of_all_clients_do_not_vanish() -> None:
    """They would with rounding to the nearest: each is a hundredth of a step."""
    start = {"w": np.zeros(1000, np.float32)}
    step = 16 / (2**31 / 100) * 1000
    updates = [{"w": np.full(1000, 0.01 * step, np.float32)}] * 100
    found = summed(start, updates, most=1000, examples=[(1, {})] * 100)
    assert found.model["w"].mean() == pytest.approx(0.01 * step, rel=0.4)  # of 100,000 roundings: 12 deviations


def test_whole_numbers_that_would_wrap_around_are_cut_off_and_counted() -> None:
    start = {"n": np.zeros(1, np.int64)}
    found = summed(start, [{"n": np.array([2**63 - 1])}, {"n": np.array([2**63 - 1])}])
    assert found.model["n"][0] == pytest.approx(2**62, rel=1e-9)
    assert found.clipped == 1.0


@pytest.mark.parametrize("value", [2**64 - 5, 2**63])
def test_unsigned_numbers_that_would_wrap_around_are_cut_off_and_counted(value: int) -> None:
    start = {"n": np.zeros(1, np.uint64)}
    found = summed(start, [{"n": np.array([value], np.uint64)}] * 2)
    assert found.model["n"][0] == pytest.approx(2**62, rel=1e-9)
    assert found.clipped == 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_refused(value: float) -> None:
    start = {"w": np.zeros(2, np.float32)}
    with pytest.raises(InvalidUpdate, match="'w' holds NaN or infinity"):
        layout(start, 2).encode(start, {"w": np.array([1, value], np.float32)}, 1, {})


def test_an_update_of_another_form_is_refused() -> None:
    start = {"w": np.zeros(2, np.float32)}
    with pytest.raises(InvalidUpdate, match="'w' is float32 of shape \\(3,\\); expected float32 of shape \\(2,\\)"):
        layout(start, 2).encode(start, {"w": np.zeros(3, np.float32)}, 1, {})


@pytest.mark.parametrize("place", ["small", "large"])
def test_a_sum_with_a_changed_word_is_refused(place: str) -> None:
    start: dict[str, Any] = {"w": np.zeros(2, np.float32), "n": np.zeros(2, np.int64)}
    form = layout(start, 2)
    words = form.encode(start, start, 1, {})
    getattr(words, place)[1] += 1
    with pytest.raises(InvalidUpdate, match="no valid sum"):
        form.decode(start, words)


def test_largest_changes_of_all_clients_do_not_wrap_around() -> None:
    for clients in (2, 3, 7, 1000):
        start = {"w": np.zeros(1, np.float32), "d": np.zeros(1)}
        updates = [{"w": np.array([16], np.float32), "d": np.array([16.0])}] * clients
        found = summed(start, updates)
        assert found.model["w"] == pytest.approx([16], rel=1e-5)
        assert found.model["d"] == pytest.approx([16], rel=1e-5)
