"""The robust strategies against the definitions of their papers, written out per coordinate or per pair of updates."""

from __future__ import annotations

import inspect
import itertools
import math
import re
import statistics
import tracemalloc
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import fl.aggregation.update_store
from fl.config.strategy import STRATEGIES
from fl.errors import InvalidUpdate, TooFewUpdates, UpdateStoreError
from fl.messages import Update
from fl.strategies.base import polynomial
from fl.strategies.robust import Bulyan, FedMedian, FedTrimmedAvg, GeometricMedian, Krum, MultiKrum, RobustStrategy
from netq.errors import InvalidOption, NetqError
from tests.fl.federation import A
from tests.pages import Page


class Case(NamedTuple):
    """What the tests that all robust strategies share have to know of one."""

    options: dict[str, Any]  # with which it tolerates 3 byzantine clients of 15 or more
    needs: list[tuple[dict[str, Any], int, str]]  # options, number of updates needed, reason in the error
    in_range: bool = True  # whether each coordinate stays in the range of the honest updates; else the error is bounded
    rounding: float = 0.0  # relative error of the result if all updates are equal, in float64


CASES: dict[type[RobustStrategy], Case] = {
    FedMedian: Case({}, [({}, 1, "for a median")]),
    FedTrimmedAvg: Case({"beta": 0.2}, [({}, 1, "for a mean")]),
    Krum: Case(
        {"byzantine": 3},
        [({"byzantine": 0}, 3, "2f + 3, with f = 0 byzantine"), ({"byzantine": 1}, 5, "2f + 3, with f = 1 byzantine")],
    ),
    MultiKrum: Case(
        {"byzantine": 3},
        [
            ({"byzantine": 2}, 7, "2f + 3, with f = 2 byzantine"),
            ({"byzantine": 2, "keep": 4}, 7, "2f + 3, with f = 2 byzantine"),
            ({"byzantine": 1, "keep": 8}, 9, "8 to keep, and 1 byzantine"),
        ],
    ),
    Bulyan: Case({"byzantine": 3}, [({"byzantine": 1}, 7, "4f + 3, with f = 1 byzantine")]),
    GeometricMedian: Case({}, [({}, 1, "for a median")], in_range=False, rounding=1e-15),
}
NEEDS = [(kind, *need) for kind, case in CASES.items() for need in case.needs]
every_kind = pytest.mark.parametrize("kind", CASES)

PAGE = Page("docs/reference/strategies.md").section("Byzantine-robust strategies")
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-14, "complex64": 1e-6}

Points = list[list[float]]  # coordinates of each update
Squares = dict[tuple[int, int], Fraction]
Combine = Callable[[list[float]], float]  # values of one coordinate -> result


def model(seed: int) -> dict[str, Any]:
    """A model with tensors of all kinds; odd seeds have another memory layout."""
    random = np.random.default_rng(seed)
    weight = random.normal(size=(17, 9)).astype(np.float32)
    return {
        "weight": np.asfortranarray(weight) if seed % 2 else weight,
        "bias": random.normal(size=18)[:: 2 if seed % 2 else 1][:9],
        "steps": np.array(random.integers(1000), np.int64),
        "mask": torch.from_numpy(random.random(5) < 0.5),
        "nothing": np.zeros((0, 3), np.float32),
        "phase": (random.normal(size=4) + 1j * random.normal(size=4)).astype(np.complex64),
        "half": torch.from_numpy(random.normal(size=(2, 3))).to(torch.bfloat16),
        "scale": np.array(random.normal(), np.float16),
    }


def random_updates(count: int) -> list[Update]:
    return [Update(model(seed), 1 + seed * 37 % 11) for seed in range(1, count + 1)]


def run(strategy: RobustStrategy, updates: Sequence[Update], start: dict[str, Any]) -> dict[str, Any]:
    """Run one round of a strategy that has begun."""
    try:
        for update in updates:
            strategy.fold(start, update, client=A)
        return dict(strategy.finish(start, number=1))
    except BaseException:
        strategy.abandon()
        raise


def begun(strategy: RobustStrategy, start: dict[str, Any]) -> RobustStrategy:
    strategy.begin(start)
    return strategy


def of(strategy: RobustStrategy, points: Any, examples: int = 1, dtype: str = "f8") -> NDArray[Any]:
    """Return the result of a strategy for these vectors."""
    updates = [Update({"w": np.array(point, dtype)}, examples) for point in points]
    found: NDArray[Any] = run(begun(strategy, updates[0].model), updates, updates[0].model)["w"]
    return found


def floats(tensor: Any) -> list[float]:
    """Return the elements in C order; a complex one as its real and its imaginary part."""
    array: NDArray[Any] = tensor.double().numpy() if isinstance(tensor, torch.Tensor) else np.asarray(tensor)
    return [
        float(part)
        for element in array.ravel()
        for part in ([element.real, element.imag][: 1 + (array.dtype.kind == "c")])
    ]


def points(updates: Sequence[Update]) -> Points:
    """Return the elements that count in distances: those of all tensors but integers and bools."""
    names = [name for name in model(0) if name not in ("steps", "mask")]
    return [[value for name in names for value in floats(update.model[name])] for update in updates]


def assert_combined(result: dict[str, Any], updates: Sequence[Update], combine: Combine) -> None:
    """Assert that each coordinate is the result of `combine`, rounded to its dtype."""
    for name, like in model(0).items():
        assert (type(result[name]), result[name].dtype, result[name].shape) == (type(like), like.dtype, like.shape)
        columns = zip(*[floats(update.model[name]) for update in updates], strict=True)
        expected = [combine(list(column)) for column in columns]
        if name == "steps":
            expected = [round(value) for value in expected]
        if name == "mask":
            expected = [value > 0.5 for value in expected]
        tolerance = TOLERANCE.get(str(like.dtype).removeprefix("torch."), 0.0)
        np.testing.assert_allclose(floats(result[name]), expected, rtol=tolerance, atol=tolerance, err_msg=name)


def test_cases_have_every_public_robust_strategy() -> None:
    assert set(CASES) == {kind for kind in STRATEGIES.values() if issubclass(kind, RobustStrategy)}


# Definitions of the papers


def trimmed(column: list[float], beta: Fraction) -> float:
    cut = math.floor(beta * len(column))
    return statistics.fmean(sorted(column)[cut : len(column) - cut])


def around_median(column: list[float], keep: int) -> float:
    middle = statistics.median(column)
    return statistics.fmean(sorted(column, key=lambda value: (abs(value - middle), value))[:keep])


def by_krum(points: Points, left: Sequence[int], byzantine: int, squares: Squares | None = None) -> list[int]:
    """Return the selected updates, the best first, by exact arithmetic."""
    squares = squares or exact_squares(points)

    def score(one: int) -> Fraction:
        others = sorted(squares[one, other] for other in left if other != one)
        return Fraction(sum(others[: max(1, len(left) - byzantine - 2)]))

    return sorted(left, key=score)


def exact_squares(points: Points) -> Squares:
    """Return the squares of the distances, by the numbers of two points."""
    exact = [list(map(Fraction, point)) for point in points]
    numbers = range(len(points))
    found = {
        (one, other): sum(((a - b) ** 2 for a, b in zip(exact[one], exact[other], strict=True)), Fraction())
        for one in numbers
        for other in numbers[:one]
    }
    return {**found, **{(other, one): square for (one, other), square in found.items()}}


def by_repeated_krum(points: Points, byzantine: int) -> list[int]:
    left, squares = list(range(len(points))), exact_squares(points)
    return [
        left.pop(left.index(by_krum(points, left, byzantine, squares)[0])) for _ in range(len(points) - 2 * byzantine)
    ]


def by_weiszfeld(points: Points, examples: Sequence[int], iterations: int, smoothing: float) -> list[float]:
    """Return the weights of the updates."""
    at, weights = [statistics.median(column) for column in zip(*points, strict=True)], [0.0]
    for _ in range(iterations):
        closeness = [n / max(smoothing, math.dist(at, point)) for n, point in zip(examples, points, strict=True)]
        weights = [each / math.fsum(closeness) for each in closeness]
        at = [weighted(weights, column) for column in zip(*points, strict=True)]
    return weights


def weighted(weights: Sequence[float], column: Sequence[float]) -> float:
    return math.fsum(weight * value for weight, value in zip(weights, column, strict=True))


@pytest.mark.parametrize("count", [1, 2, 3, 6, 11])
def test_fedmedian_is_the_median_of_each_coordinate(count: int) -> None:
    updates = random_updates(count)
    assert_combined(run(begun(FedMedian(), model(0)), updates, model(0)), updates, statistics.median)


@pytest.mark.parametrize("beta", ["0", "0.1", "0.2", "0.29", "0.3", "0.49"])
@pytest.mark.parametrize("count", [1, 2, 10, 11])
def test_fedtrimmedavg_is_the_mean_of_each_trimmed_coordinate(count: int, beta: str) -> None:
    updates = random_updates(count)
    result = run(begun(FedTrimmedAvg(float(beta)), model(0)), updates, model(0))
    assert_combined(result, updates, lambda column: trimmed(column, Fraction(beta)))


def test_trimmed_count_is_not_lowered_by_rounding_of_beta() -> None:
    values = [[float(n**3)] for n in range(100)]
    assert 0.29 * 100 < 29
    assert of(FedTrimmedAvg(0.29), values) == pytest.approx(sum(n**3 for n in range(29, 71)) / 42, rel=1e-14)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_beta_of_one_half_is_the_median(count: int) -> None:
    updates = random_updates(count)
    assert_combined(run(begun(FedTrimmedAvg(0.5), model(0)), updates, model(0)), updates, statistics.median)


@pytest.mark.parametrize(("count", "byzantine"), [(3, 0), (5, 1), (8, 1), (9, 3)])
def test_krum_is_the_update_with_the_lowest_score(count: int, byzantine: int) -> None:
    updates = random_updates(count)
    best = by_krum(points(updates), range(count), byzantine)[0]
    assert_combined(run(begun(Krum(byzantine), model(0)), updates, model(0)), [updates[best]], lambda column: column[0])


@pytest.mark.parametrize(("count", "byzantine", "keep"), [(3, 0, None), (8, 2, None), (8, 2, 3), (9, 3, 6), (9, 3, 1)])
def test_multikrum_is_the_mean_of_the_lowest_scores(count: int, byzantine: int, keep: int | None) -> None:
    updates = random_updates(count)
    best = by_krum(points(updates), range(count), byzantine)[: keep or count - byzantine]
    result = run(begun(MultiKrum(byzantine, keep), model(0)), updates, model(0))
    assert_combined(result, [updates[at] for at in best], statistics.fmean)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "byzantine"), [(3, 0), (4, 0), (7, 1), (8, 1), (11, 2), (13, 2)])
def test_bulyan_is_the_mean_around_the_median_of_krums_choice(count: int, byzantine: int) -> None:
    updates = random_updates(count)
    chosen = [updates[at] for at in by_repeated_krum(points(updates), byzantine)]
    result = run(begun(Bulyan(byzantine), model(0)), updates, model(0))
    assert_combined(result, chosen, lambda column: around_median(column, count - 4 * byzantine))


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize(("iterations", "smoothing"), [(1, 1e-6), (3, 1e-6), (8, 20.0)])
def test_geometric_median_matches_smoothed_weiszfeld(count: int, iterations: int, smoothing: float) -> None:
    updates = random_updates(count)
    weights = by_weiszfeld(points(updates), [update.num_examples for update in updates], iterations, smoothing)
    result = run(begun(GeometricMedian(iterations, smoothing), model(0)), updates, model(0))
    assert_combined(result, updates, lambda column: weighted(weights, column))


def test_geometric_median_minimises_the_sum_of_distances() -> None:
    random = np.random.default_rng(3)
    points = random.normal(size=(9, 5)) * np.arange(1, 10)[:, np.newaxis]
    found = of(GeometricMedian(iterations=200), points)
    pulls = [(point - found) / math.dist(point, found) for point in points]
    assert np.abs(np.sum(pulls, axis=0)).max() < 1e-9


def test_geometric_median_of_a_majority_weight_is_that_update() -> None:
    updates = [Update({"w": np.array([float(n), -n])}, 20 if n == 4 else 2) for n in range(5)]
    result = run(begun(GeometricMedian(iterations=50), updates[0].model), updates, updates[0].model)
    np.testing.assert_allclose(result["w"], [4, -4], atol=1e-5)


# Byzantine clients


def honest(count: int) -> NDArray[np.float64]:
    """Return trained models: all moved in one direction, with small differences."""
    random = np.random.default_rng(count)
    return random.normal(size=40) + 0.1 * random.normal(size=(count, 40))


def stated(kind: type[RobustStrategy], column: str, **values: Any) -> list[float]:
    """Return the values of the expressions in a cell of the page; none for an expression with an option of None."""
    head, *rows = PAGE.tables("strategy", "what it does")[0]
    (row,) = [row for row in rows if row[0].startswith(f"`{kind.__name__}(")]
    values = {name: each.default for name, each in inspect.signature(kind).parameters.items()} | values
    expressions = [compile(each, kind.__name__, "eval") for each in re.findall(r"`(.+?)`", row[head.index(column)])]
    return [eval(each, values) for each in expressions if all(values[name] is not None for name in each.co_names)]


def tolerated(kind: type[RobustStrategy], n: int) -> int:
    """Return how many byzantine clients of `n` the page says that the strategy of CASES tolerates."""
    return math.floor(min(stated(kind, "faulty clients tolerated, of n", **CASES[kind].options, n=n)))


@pytest.mark.parametrize(("kind", "options", "needed", "reason"), NEEDS)
def test_page_states_the_least_updates(
    kind: type[RobustStrategy], options: dict[str, Any], needed: int, reason: str
) -> None:
    assert max(stated(kind, "updates needed", **options)) == needed


@every_kind
@pytest.mark.parametrize("size", [-1e300, -1e30, -50.0, 3.0, 1e10, 1.7e308])
@pytest.mark.parametrize("first", [True, False])
def test_stated_number_of_byzantine_clients_is_tolerated(kind: type[RobustStrategy], size: float, first: bool) -> None:
    count = tolerated(kind, 15)
    good = honest(15 - count)
    faulty = np.full((count, 40), size) / np.arange(1, count + 1)[:, np.newaxis]
    found = of(kind(**CASES[kind].options), [*faulty, *good] if first else [*good, *faulty])
    assert count >= 3
    if CASES[kind].in_range:
        slack = 1e-14 * np.abs(good).max()
        assert (good.min(0) - slack <= found).all()
        assert (found <= good.max(0) + slack).all()
    else:
        share = count / 15  # bound: lemma 2 of Lopuhaä and Rousseeuw, 1991, as Pillutla et al. have it
        spread = max(math.dist(point, good.mean(0)) for point in good)
        assert math.dist(found, good.mean(0)) <= 2 * (1 - share) / (1 - 2 * share) * spread


@pytest.mark.parametrize("kind", [kind for kind, case in CASES.items() if "byzantine" not in case.options])
def test_one_more_byzantine_client_than_stated_moves_the_model(kind: type[RobustStrategy]) -> None:
    count = tolerated(kind, 15) + 1
    good = honest(15 - count)
    faulty = np.full((count, 40), 1e6) / np.arange(1, count + 1)[:, np.newaxis]
    assert math.dist(of(kind(**CASES[kind].options), [*faulty, *good]), good.mean(0)) > 1000


@every_kind
def test_sign_flipping_clients_do_not_reverse_the_model(kind: type[RobustStrategy]) -> None:
    good = honest(12)
    centre = good.mean(0)
    faulty = -10 * good[:3]
    found = of(kind(**CASES[kind].options), [*faulty, *good])
    assert math.dist(np.mean([*faulty, *good], axis=0), centre) > 10  # FedAvg would move this far
    assert math.dist(found, centre) < 0.7  # about as far as one honest update


def test_multikrum_drops_as_many_as_byzantine() -> None:
    good = honest(6)
    faulty = [np.full(40, 1e200), -good[0]]
    np.testing.assert_allclose(of(MultiKrum(2), [*faulty, *good]), good.mean(0), rtol=1e-13)


FINITE = st.floats(allow_nan=False, allow_infinity=False)
COLUMN = st.integers(1, 4).flatmap(
    lambda count: st.tuples(
        st.lists(FINITE, min_size=count, max_size=count),
        st.lists(st.floats(-1e100, 1e100), min_size=3 * count + 3, max_size=3 * count + 5),
        st.randoms(use_true_random=False),
    )
)


@pytest.mark.slow
@given(COLUMN)
def test_medians_and_bulyan_stay_in_the_honest_range(column: tuple[Any, Any, Any]) -> None:
    faulty, good, random = column
    values = [[value] for value in faulty + good]
    random.shuffle(values)
    low, high = min(good), max(good)
    slack = 1e-15 * max(abs(low), abs(high))
    assert low <= of(FedMedian(), values)[0] <= high
    assert low - slack <= of(FedTrimmedAvg(len(faulty) / len(values)), values)[0] <= high + slack
    width = high - low + slack
    assert low - width <= of(Bulyan(len(faulty)), values)[0] <= high + width


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=5, max_size=9), st.integers(0, 1))
def test_krum_matches_exact_arithmetic(values: list[float], byzantine: int) -> None:
    points = [[value, 0.5] for value in values]
    scores = [scored(points, at, byzantine) for at in range(len(points))]
    found = of(Krum(byzantine), points, dtype="f4")
    at = min(index for index, value in enumerate(values) if value == found[0])
    assert scores[at] <= min(scores) * (1 + Fraction(1, 10**12))


def scored(points: Points, at: int, byzantine: int) -> Fraction:
    squares = sorted((Fraction(points[at][0]) - Fraction(other[0])) ** 2 for other in points[:at] + points[at + 1 :])
    return Fraction(sum(squares[: len(points) - byzantine - 2]))


# Numerical extremes and ties


@pytest.mark.parametrize("outlier", [1e15, 1e200])
def test_distances_stay_exact_far_from_origin_and_outlier(outlier: float) -> None:
    near = [1e8 + step * 1e-6 for step in (0, 5, 7, 8.5, 11, 30)]
    points = [[outlier], *[[value] for value in near]]
    assert of(Krum(1), points)[0] == points[by_krum(points, range(7), 1)[0]][0]


def test_update_at_an_infinite_distance_does_not_count() -> None:
    good = 0.1 * np.random.default_rng(1).normal(size=(9, 10_000))
    found = of(GeometricMedian(), [np.full(10_000, 1.7e308), *good])
    np.testing.assert_allclose(found, of(GeometricMedian(), good), atol=1e-9)  # the starts differ, 8 iterations do not


def test_distances_exceed_the_range_of_the_tensors_dtype() -> None:
    points = [[value * 1e30] for value in (9.0, 1.0, 2.0, 2.5, 4.0)]
    assert of(Krum(1), points, dtype="f4")[0] == np.float32(2e30)


def test_smallest_smoothing_works() -> None:
    assert of(GeometricMedian(smoothing=5e-324), [[1.0], [1.0], [5.0]])[0] == 1


@pytest.mark.parametrize("order", list(itertools.permutations(range(5))))
def test_earlier_arrival_wins_between_equal_scores(order: tuple[int, ...]) -> None:
    first = next(value for value in order if value in (1, 2, 3))  # each has two neighbours at distance 1
    assert of(Krum(1), [[float(value)] for value in order])[0] == first


@every_kind
def test_order_of_arrival_changes_rounding_only(kind: type[RobustStrategy]) -> None:
    # With 15 updates the last step of Bulyan scores 7, each by two neighbours. With one neighbour each, the two updates
    # that are nearest to each other would have equal scores, and the earlier arrival would win.
    updates = random_updates(15)
    one, other = [
        run(begun(kind(**CASES[kind].options), model(0)), some, model(0)) for some in (updates, updates[::-1])
    ]
    for name in one:
        np.testing.assert_allclose(floats(one[name]), floats(other[name]), rtol=1e-6, atol=1e-6)


@every_kind
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "int32", "bool"])
def test_equal_updates_give_exactly_that_update(kind: type[RobustStrategy], dtype: str) -> None:
    values = torch.from_numpy(np.random.default_rng(1).normal(size=500) * 100).to(getattr(torch, dtype))
    updates = [Update({"w": values.clone()}, 1 + n) for n in range(7)]
    result = run(begun(kind(), {"w": values}), updates, {"w": values})["w"]
    if CASES[kind].rounding and dtype == "float64":
        assert torch.allclose(result, values, rtol=CASES[kind].rounding, atol=0)
    else:
        assert torch.equal(result, values)


@every_kind
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_result_of_finite_updates_is_finite(kind: type[RobustStrategy], dtype: str) -> None:
    largest = float(np.finfo(dtype).max)
    for values in itertools.product([largest, -largest], repeat=3):
        found = of(kind(), [[value, 1.0] for value in (*values, *values, largest / 2)], dtype=dtype)
        assert np.isfinite(found).all()
        assert np.abs(found).max() <= largest


@every_kind
def test_block_size_changes_rounding_only(kind: type[RobustStrategy], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(begun(kind(), model(0)), random_updates(8), model(0))
    monkeypatch.setattr(fl.aggregation.update_store, "CELLS", 40)  # five elements
    parts = run(begun(kind(), model(0)), random_updates(8), model(0))
    for name in whole:
        np.testing.assert_allclose(floats(parts[name]), floats(whole[name]), rtol=1e-6, atol=1e-6)


# Rounds


@every_kind
def test_rounds_are_independent(kind: type[RobustStrategy]) -> None:
    start, updates = model(0), random_updates(14)
    strategy = begun(kind(), start)
    first = run(strategy, updates[:7], start)
    kept = {name: floats(tensor) for name, tensor in first.items()}
    second = run(strategy, updates[7:], first)
    alone = run(begun(kind(), start), updates[7:], first)
    assert {name: floats(tensor) for name, tensor in second.items()} == {n: floats(t) for n, t in alone.items()}
    assert {name: floats(tensor) for name, tensor in first.items()} == kept  # no working memory of the strategy


@every_kind
def test_staleness_is_refused_at_construction(kind: type[RobustStrategy]) -> None:
    with pytest.raises(InvalidOption, match=rf"^{kind.__name__}\.staleness: expected None; .* late update began at an"):
        kind(staleness=polynomial())


@pytest.mark.slow
@every_kind
def test_memory_does_not_grow_with_clients(kind: type[RobustStrategy]) -> None:
    start = {"w": np.arange(500_000, dtype="f4")}
    strategy = begun(kind(), start)
    tracemalloc.start()
    try:
        run(strategy, [Update(start, 1)] * 30, start)  # 60 MB
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("kind", "options", "needed", "reason"), NEEDS)
def test_too_few_updates_raise_and_are_kept(
    kind: type[RobustStrategy], options: dict[str, Any], needed: int, reason: str
) -> None:
    strategy = kind(**options)
    assert strategy.least == needed
    start, updates = model(0), random_updates(needed)
    begun(strategy, start)
    for update in updates[:-1]:
        strategy.fold(start, update, client=A)
    said = re.escape(f"{needed - 1} updates came; {kind.__name__} needs {needed} ({reason})")
    with pytest.raises(TooFewUpdates, match=said) as caught:
        strategy.finish(start, number=1)
    assert isinstance(caught.value, NetqError)
    assert not isinstance(caught.value, InvalidUpdate)  # no client is to blame
    assert run(strategy, updates[-1:], start).keys() == start.keys()


# Options


@every_kind
def test_common_options_and_folder_are_accepted(kind: type[RobustStrategy], tmp_path: Path) -> None:
    strategy = kind(fraction=0.5, config={"rate": 0.1}, folder=tmp_path)
    assert strategy.enough(10) == 5
    assert strategy.config(1) == {"rate": 0.1}
    begun(strategy, model(0))
    with pytest.raises(UpdateStoreError, match=f"folder {tmp_path / 'missing'}: no file can be made there"):
        begun(kind(folder=tmp_path / "missing"), model(0))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: FedTrimmedAvg(-0.1), "beta: -0.1; expected 0 or more, and 0.5 at most"),
        (lambda: FedTrimmedAvg(0.51), "beta: 0.51"),
        (lambda: FedTrimmedAvg(math.nan), "beta: nan"),
        (lambda: Krum(-1), "byzantine: -1; expected a whole number of 0 or more"),
        (lambda: MultiKrum(1.5), "byzantine: 1.5"),  # type: ignore[arg-type]
        (lambda: Bulyan(True), "byzantine: True"),
        (lambda: MultiKrum(1, keep=0), "keep: 0; expected a whole number of 1 or more"),
        (lambda: GeometricMedian(iterations=0), "iterations: 0; expected a whole number of 1 or more"),
        (lambda: GeometricMedian(smoothing=0), "smoothing: 0; expected more than 0"),
    ],
)
def test_options_out_of_range_are_refused(make: Callable[[], RobustStrategy], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()
