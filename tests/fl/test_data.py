"""fl.data: each example goes to one client, sizes are equal, and alpha sets how far the clients' labels differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import fl
from netq.errors import InvalidOption
from tests.pages import Page

LABELS = np.random.default_rng(0).integers(10, size=5000)

cases = st.integers(1, 12).flatmap(
    lambda clients: st.tuples(st.just(clients), st.lists(st.integers(-3, 3), min_size=clients, max_size=80))
)
seeds = st.integers(0, 2**32)


def assert_is_partition(parts: list[NDArray[np.intp]], clients: int, examples: int) -> None:
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(examples))
    sizes = [part.size for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    assert all((np.diff(part) > 0).all() for part in parts)


@pytest.mark.slow
@given(cases, st.floats(1e-6, 1e6), seeds)
def test_dirichlet_gives_each_example_to_one_client(case: tuple[int, list[int]], alpha: float, seed: int) -> None:
    clients, labels = case
    parts = fl.data.dirichlet(labels, clients, alpha, seed)
    assert_is_partition(parts, clients, len(labels))
    again = fl.data.dirichlet(labels, clients, alpha, seed)
    assert [part.tolist() for part in parts] == [part.tolist() for part in again]


@given(st.integers(1, 12), st.integers(0, 80), seeds)
def test_iid_gives_each_example_to_one_client(clients: int, more: int, seed: int) -> None:
    assert_is_partition(fl.data.iid(clients + more, clients, seed), clients, clients + more)


def distance_from_whole(parts: list[NDArray[np.intp]]) -> float:
    """The mean total variation distance of the clients' mixtures of labels from that of the whole data set."""
    whole = np.bincount(LABELS, minlength=10) / LABELS.size
    mixtures = [np.bincount(LABELS[part], minlength=10) / part.size for part in parts]
    return float(np.mean([np.abs(mixture - whole).sum() / 2 for mixture in mixtures]))


def test_smaller_alpha_makes_labels_differ_more() -> None:
    distances = [distance_from_whole(fl.data.dirichlet(LABELS, 20, alpha)) for alpha in (1e4, 10, 1, 0.1)]
    assert distances == sorted(distances)
    assert distances[0] < 0.1
    assert distances[-1] > 0.6
    assert distance_from_whole(fl.data.iid(5000, 20)) < 0.15


def test_mixture_follows_the_dirichlet_distribution() -> None:
    """Of two equal labels and alpha 2, Dir(1, 1) is uniform: so is the share of one label among the first clients."""
    labels = np.arange(100_000) % 2
    shares = [
        labels[part].mean() for seed in range(4) for part in fl.data.dirichlet(labels, 100, 2.0, seed) if part.size
    ]
    assert np.mean(shares) == pytest.approx(0.5)
    assert np.std(shares) == pytest.approx(12**-0.5, abs=0.05)


def test_page_example_takes_the_part_of_one_client() -> None:
    *_, code = Page("docs/how-to/simulation.md").blocks("python")
    config = {"partition": 2, "partitions": 4}
    names: dict[str, Any] = {"fl": fl, "labels": LABELS, "images": LABELS, "config": config}
    exec(code, names)
    assert names["mine"].size == 1250


def test_labels_may_be_texts_and_seeds_differ() -> None:
    labels = np.where(LABELS < 5, "cat", "dog")
    assert_is_partition(fl.data.dirichlet(labels, 7, 0.5), 7, 5000)
    one, other = [fl.data.dirichlet(labels, 7, 0.5, seed) for seed in (1, 2)]
    assert one[0].tolist() != other[0].tolist()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([0, 1, 0], 4, 1.0), r"^clients: 4; expected at most one for each of the 3 examples$"),
        (([0, 1], 0, 1.0), r"^clients: 0; expected a whole number of 1 or more"),
        (([0, 1], 2, 0), r"^alpha: 0; expected a finite number above 0"),
        (([0, 1], 2, float("inf")), r"^alpha: inf"),
        (([0, 1], 2, float("nan")), r"^alpha: nan"),
        (([[0, 1]], 1, 1.0), r"^labels: 'an array of shape \(1, 2\)'; expected one label"),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        fl.data.dirichlet(*arguments)
