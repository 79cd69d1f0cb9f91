"""The kernels of the robust strategies, with results worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fl.aggregation.robust import mean, mean_around_median, median, reals, scores, squared_norms, trimmed_mean

ROWS = np.array([[1.0, 10.0], [2.0, 20.0], [4.0, -90.0], [9.0, 30.0]])
LARGEST = np.finfo(np.float64).max


def test_mean_and_median_are_taken_by_column() -> None:
    assert mean(ROWS).tolist() == [4, -7.5]
    assert median(ROWS).tolist() == [3, 15]
    assert median(ROWS[:3]).tolist() == [2, 10]
    assert median(ROWS[:1]).tolist() == [1, 10]


def test_mean_of_the_largest_floats_does_not_overflow() -> None:
    assert mean(np.array([[LARGEST], [LARGEST], [LARGEST]])).tolist() == [LARGEST]
    assert mean(np.array([[LARGEST], [-LARGEST]])).tolist() == [0]


@pytest.mark.parametrize(("cut", "expected"), [(0, [4, -7.5]), (1, [3, 15])])
def test_trimmed_mean_drops_values_at_both_ends(cut: int, expected: list[float]) -> None:
    assert trimmed_mean(ROWS, cut).tolist() == expected


@pytest.mark.parametrize(("keep", "expected"), [(1, [2, 10]), (2, [3, 15]), (3, [7 / 3, 20]), (4, [4, -7.5])])
def test_mean_around_median_keeps_the_closest_values(keep: int, expected: list[float]) -> None:
    np.testing.assert_allclose(mean_around_median(ROWS, keep), expected)  # of equally close values, the lower one


def test_kernels_leave_their_rows_unchanged() -> None:
    rows = ROWS.copy()
    for each in (mean, median):
        each(rows)
    trimmed_mean(rows, 1)
    mean_around_median(rows, 2)
    assert np.array_equal(rows, ROWS)


def test_scores_sum_the_squares_of_the_nearest_others() -> None:
    at = np.array([0.0, 1.0, 3.0, 10.0, 11.0])
    squares = (at[:, np.newaxis] - at) ** 2
    assert scores(squares, byzantine=1).tolist() == [1 + 9, 1 + 4, 4 + 9, 1 + 49, 1 + 64]
    assert scores(squares, byzantine=9).tolist() == [1, 1, 4, 1, 1]  # at least one neighbour counts
    assert np.diag(squares).tolist() == [0] * 5  # unchanged


def test_infinite_distance_gives_an_infinite_score() -> None:
    squares = np.array([[0, 1, np.inf], [1, 0, np.inf], [np.inf, np.inf, 0]])
    assert scores(squares, byzantine=0).tolist() == [1, 1, np.inf]


def test_complex_numbers_count_as_two_reals() -> None:
    rows = np.array([[3 + 4j, 0], [1j, 2 - 1j]])
    assert reals(rows).tolist() == [[3, 4, 0, 0], [0, 1, 2, -1]]
    assert np.shares_memory(reals(rows), rows)
    assert squared_norms(reals(rows)).tolist() == [25, 6]
