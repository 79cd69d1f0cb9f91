"""Changes as whole numbers: no change is longer than its bound, and the mean is right to a step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fl.errors import InvalidUpdate
from fl.privacy.bounded import Bounded, Clipping
from fl.tensors.spec import specs_of


def model(scale: float = 1.0) -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {
        "w": (scale * random.normal(size=(40, 30))).astype(np.float32),
        "half": torch.tensor(scale * random.normal(size=50)).to(torch.bfloat16),
        "z": (scale * random.normal(size=7) + 1j).astype(np.complex64),
        "wide": scale * random.normal(size=(3, 3)),
        "none": np.zeros((0, 4), np.float32),
    }


def moved(start: dict[str, Any], by: float) -> dict[str, Any]:
    random = np.random.default_rng(2)
    return {
        name: tensor + by * random.normal(size=tuple(tensor.shape)).astype(np.float32)
        if isinstance(tensor, np.ndarray)
        else (tensor.float() + by * torch.tensor(random.normal(size=tuple(tensor.shape)))).to(tensor.dtype)
        for name, tensor in start.items()
    }


def form(clip: float, clients: int = 4, *, follows: bool = False, multiplier: float = 1.0) -> Bounded:
    return Bounded(specs_of(model()), Clipping(clip, multiplier, follows), clients)


def whole(bounded: Bounded, start: Any, trained: Any) -> np.ndarray:
    found = [each.copy() for each in bounded.whole(start, trained)]
    joined = np.concatenate(found)
    assert joined.size == bounded.size
    assert np.array_equal(joined, np.rint(joined))
    return joined


@pytest.mark.parametrize("by", [0.0, 1e-6, 0.01, 1.0, 1e6])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("follows", [False, True])
def test_no_change_is_longer_than_what_the_noise_covers(by: float, clip: float, follows: bool) -> None:
    start, bounded = model(), form(clip, follows=follows)
    found = whole(bounded, start, moved(start, by))
    assert np.linalg.norm(found) <= bounded.deviation / 1.0 * (1 + 1e-12)  # the multiplier is 1


def test_the_mean_of_changes_within_the_clip_is_theirs() -> None:
    start, bounded = model(), form(50.0)
    trained = [moved(start, by) for by in (0.1, 0.2, 0.3)]
    found = bounded.moved(start, np.sum([whole(bounded, start, each) for each in trained], axis=0))
    for name, tensor in start.items():
        change = sum(np.asarray(torch.as_tensor(each[name]).to(torch.complex128)) for each in trained)
        before = np.asarray(torch.as_tensor(tensor).to(torch.complex128))
        expected = before + (change - 3 * before) / 4  # divided by the number of clients, not of changes
        now = np.asarray(torch.as_tensor(found[name]).to(torch.complex128))
        assert now == pytest.approx(expected, abs=0.02 if name == "half" else 50 / 300 / 35)
        assert found[name].dtype == tensor.dtype
        assert type(found[name]) is type(tensor)


def test_a_longer_change_keeps_its_direction() -> None:
    start, bounded = model(), form(1.0)
    found, unclipped = whole(bounded, start, moved(start, 3.0)), whole(form(200.0), start, moved(start, 3.0))
    assert np.linalg.norm(found) == pytest.approx(bounded.deviation, rel=2e-3)
    cosine = found @ unclipped / np.linalg.norm(found) / np.linalg.norm(unclipped)
    assert cosine > 0.999


def test_the_number_of_clients_within_the_clip() -> None:
    start, bounded = model(), form(5.0, follows=True)
    within, beyond = moved(start, 1e-4), moved(start, 10.0)
    assert whole(bounded, start, within)[-1] == -whole(bounded, start, beyond)[-1] > 0
    total = whole(bounded, start, within) * 3 + whole(bounded, start, beyond)
    assert bounded.within(total) == pytest.approx(0.75)
    assert form(5.0).within(whole(form(5.0), start, within)) is None


@pytest.mark.parametrize("scale", [1e-170, 1e-310, 5e-324])
def test_changes_whose_squares_are_0_are_within_any_clip(scale: float) -> None:
    specs, start = specs_of({"w": np.zeros(9)}), {"w": np.zeros(9)}
    bounded = Bounded(specs, Clipping(1e-100, 1.0, False), 4)
    assert not np.concatenate([each.copy() for each in bounded.whole(start, {"w": np.full(9, scale)})]).any()
    with pytest.raises(InvalidUpdate, match="clip"):
        Clipping(1e-101, 1.0, False)


@pytest.mark.parametrize("follows", [False, True])
def test_a_model_without_elements(follows: bool) -> None:
    bounded = Bounded({}, Clipping(1.0, 1.0, follows), 4)
    assert list(bounded.whole({}, {})) == []
    assert bounded.moved({}, np.zeros(bounded.size)) == {}
    assert bounded.within(np.zeros(bounded.size)) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_change_that_is_not_finite_is_refused_at_once(value: float) -> None:
    start = model()
    trained = moved(start, 0.1)
    trained["wide"][1, 1] = value
    with pytest.raises(InvalidUpdate, match="NaN or infinity"):
        form(1.0).whole(start, trained)


def test_another_form_is_refused() -> None:
    start = model()
    with pytest.raises(InvalidUpdate, match="'wide' is missing"):
        form(1.0).whole(start, {name: each for name, each in start.items() if name != "wide"})
    with pytest.raises(InvalidUpdate, match="expected"):
        form(1.0).whole(start, {**start, "wide": np.zeros(9)})


def test_too_many_clients_for_the_model_are_refused() -> None:
    with pytest.raises(InvalidUpdate, match="too few steps"):
        form(1.0, clients=2**26)


@pytest.mark.parametrize(
    ("clip", "multiplier", "follows"), [(0, 1, False), (1, 0, False), (math.nan, 1, False), (1, 1, 1), (True, 1, False)]
)
def test_a_wrong_clipping_is_refused(clip: Any, multiplier: Any, follows: Any) -> None:
    with pytest.raises(InvalidUpdate, match="expected"):
        Clipping(clip, multiplier, follows)


def test_the_sum_of_all_clients_and_the_noise_fits_into_32_bits() -> None:
    specs = specs_of({"w": np.zeros(10**6, np.float32)})
    for clients in (2, 100, 10_000):
        for multiplier in (0.1, 1.0, 100.0):
            bounded = Bounded(specs, Clipping(1.0, multiplier, False), clients, spread=2.0)
            assert clients * bounded.deviation / multiplier + 9 * 2 * bounded.deviation < 2**31
