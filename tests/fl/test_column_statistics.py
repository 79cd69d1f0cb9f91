"""Statistics of columns: exact against numpy on the pooled data, within minimum counts, and checked at the server."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import fl
from fl.column_statistics import _HEAD, _MOST, _SCALE, Answer, Query
from fl.errors import InvalidUpdate
from fl.report import ClientFailure, FailureKind
from netq.errors import InvalidOption

AGE = fl.Column(low=0, high=120, bins=24)


def ages(seed: int, number: int = 500) -> np.ndarray[Any, Any]:
    """Values of which some are missing, some out of the range, and some at its ends."""
    random = np.random.default_rng(seed)
    values = random.normal(60, 40, number)
    values[random.random(number) < 0.1] = np.nan
    values[:4] = 0, 120, -np.inf, np.inf
    return values


def answers(clients: Sequence[Any], least: int = 1, **columns: fl.Column) -> tuple[Query, list[Answer]]:
    query = Query(columns or {"age": AGE})
    return query, [query.measure({"age": values}, least) for values in clients]


def pooled(clients: Sequence[Any], least: int = 1, shown: int = 1) -> fl.ColumnStatistics:
    query, found = answers(clients, least)
    total = query.checked(np.sum([each.vector for each in found], axis=0), len(clients))
    return query.results(total, shown)[0]["age"]


def test_statistics_are_those_of_numpy_on_the_pooled_data() -> None:
    clients = [ages(seed) for seed in range(4)]
    found, all_values = pooled(clients), np.concatenate(clients)
    inside = all_values[(all_values >= 0) & (all_values <= 120)]
    assert (found.clients, found.count, found.missing) == (4, inside.size, np.isnan(all_values).sum())
    assert (found.below, found.above) == ((all_values < 0).sum(), (all_values > 120).sum())
    cells, edges = np.histogram(inside, 24, (0, 120))
    assert found.histogram.tolist() == cells.tolist()
    assert found.edges.tolist() == edges.tolist()
    assert found.suppressed == 0
    assert found.mean == pytest.approx(inside.mean(), abs=120 / 2**31)
    assert found.variance == pytest.approx(inside.var(), abs=120**2 / 2**29)


@pytest.mark.parametrize("q", [0, 0.001, 0.25, 0.5, 0.77, 1])
def test_a_quantile_is_right_to_a_cell(q: float) -> None:
    clients = [ages(seed) for seed in range(4)]
    inside = [value for value in np.concatenate(clients) if 0 <= value <= 120]
    assert pooled(clients).quantile(q) == pytest.approx(np.quantile(inside, q, method="inverted_cdf"), abs=5.0)


def test_a_quantile_across_empty_cells() -> None:
    found = pooled([np.array([1.0, 1.0, 111.0, 111.0])])
    assert [found.quantile(q) for q in (0, 0.5, 0.75, 1)] == [0.0, 5.0, 112.5, 115.0]
    with pytest.raises(InvalidOption, match=r"quantile: q: 1\.5; expected a number from 0 to 1"):
        found.quantile(1.5)


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3],
        np.array([True, False, True]),
        np.arange(12, dtype=np.uint8)[::4],
        np.ma.masked_array([1.0, 2.0, 3.0, 50.0], [False, False, False, True]),
    ],
    ids=["list", "bools", "strided bytes", "masked"],
)
def test_numbers_of_any_kind_count(values: Any) -> None:
    found = pooled([values])
    assert (found.count, found.missing) == (3, len(values) - 3)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-6)


@pytest.mark.parametrize("column", [fl.Column(-1e150, 1e150), fl.Column(0, 5e-320), fl.Column(1e9, 1e9 + 1)])
def test_extreme_ranges(column: fl.Column) -> None:
    query = Query({"x": column})
    answer = query.measure({"x": np.linspace(column.low, column.high, 1000)}, 1)
    found = query.results(query.checked(answer.vector, 1), 1)[0]["x"]
    assert found.count == found.histogram.sum() == 1000
    assert column.low <= found.mean <= column.high
    assert math.isfinite(found.variance)


def test_a_constant_column_has_no_variance() -> None:
    assert pooled([np.full(1000, 36.6)]).variance == pytest.approx(0, abs=120**2 / 2**29)


# Minimum counts


def test_a_column_with_too_few_values_is_withheld() -> None:
    query, [few, none, enough] = answers([np.full(9, 50.0), np.full(99, np.nan), np.full(10, 50.0)], 10)
    assert few.withheld == none.withheld == {"age": "it has fewer than 10 values from 0 to 120"}
    assert not few.vector.any()
    assert not none.vector.any()
    assert enough.withheld == {}
    assert query.results(few.vector, 1) == ({}, {"age": "no client has given it"})
    assert query.results(enough.vector, 11) == ({}, {"age": "it has fewer than 11 values in all clients"})


def test_a_column_that_a_client_has_not_is_withheld() -> None:
    query = Query({"age": AGE, "height": fl.Column(0, 250)})
    answer = query.measure({"age": np.full(10, 50.0)}, 10)
    assert answer.withheld == {"height": "it has no such column"}
    assert [*query.results(answer.vector, 10)[0]] == ["age"]


def test_small_numbers_are_given_as_zero() -> None:
    values = np.repeat([-1.0, 121.0, np.nan, 2.0, 12.0, 22.0, 52.0], [9, 10, 9, 20, 6, 4, 30])
    values[-60:] += np.arange(60) / 60
    _, [answer] = answers([values], 10)
    found = pooled([values], least=10)
    assert (found.below, found.above, found.missing) == (0, 10, 0)
    assert {at: int(size) for at, size in enumerate(found.histogram) if size} == {0: 20, 10: 30}
    assert (found.count, found.suppressed) == (60, 10)
    assert found.mean == pytest.approx(values[-60:].mean())
    assert answer.vector[1] == 60


def test_no_small_number_follows_from_the_count_and_the_other_cells() -> None:
    found = pooled([np.repeat([2.0, 12.0, 22.0, 32.0, 42.0], [20, 3, 30, 20, 20]) + np.arange(93) / 93], least=10)
    assert {at: int(size) for at, size in enumerate(found.histogram) if size} == {4: 30, 6: 20, 8: 20}
    assert found.suppressed == 23  # one of the smallest cells is enough


@pytest.mark.parametrize("bins", [1, 2, 24])
@pytest.mark.parametrize("counts", [(397, 3), (200, 9, 191), (99, 9, 9)])
def test_a_rare_one_of_few_values_is_not_told_by_the_mean(counts: tuple[int, ...], bins: int) -> None:
    column, values = fl.Column(0, 2, bins), np.repeat([0.0, 1.0, 2.0][: len(counts)], counts)
    _, [answer] = answers([values], 10, age=column)
    assert not answer.vector.any()
    assert "3 different values at most: count, mean and variance would tell them" in answer.withheld["age"]
    _, [answer] = answers([values], 3, age=column)
    assert answer.vector[1] == values.size


def test_how_often_a_rare_value_is_there_does_not_follow_from_mean_variance_and_cells() -> None:
    """Four values with the same count, sum and squares: no question tells how often each of them is there."""
    random, clients = np.random.default_rng(0), ([100, 5, 8, 9], [101, 2, 11, 8], [99, 8, 5, 10])
    for low, high in [(0.0, 1.0), *random.random((100, 2))]:
        column = fl.Column(-low, 3 + high, 40)
        _, found = answers([np.repeat([0, 1, 2, 3], counts) for counts in clients], 10, age=column)
        assert found[0].vector[1] == 122
        assert len({each.vector.tobytes() for each in found}) == 1


@pytest.mark.parametrize("values", [[0, 1, 2, 7.3], [0, 1, 2, *range(3, 12)]])
def test_fewer_rare_values_than_the_minimum_are_not_told_by_the_mean(values: list[float]) -> None:
    _, [few, enough] = answers([np.repeat(values, [99] * 3 + [1] * (len(values) - 3)), np.repeat(values, 99)], 10)
    assert not few.vector.any()
    assert enough.vector[1] == 99 * len(values)


def test_cells_of_single_values_are_given_if_more_than_three_others_are_not() -> None:
    values = np.repeat(np.arange(24.0) * 5, [20] * 20 + [4] * 4)
    assert pooled([values], least=10).histogram.tolist() == [20] * 20 + [0] * 4
    assert np.count_nonzero(pooled([values[:-4]], least=10).histogram) == 19


@pytest.mark.parametrize("seed", range(20))
def test_what_is_suppressed_is_none_or_enough(seed: int) -> None:
    random = np.random.default_rng(seed)
    for size in random.integers(1, 2000, 20):
        _, [answer] = answers([random.normal(60, random.integers(1, 40), size)], 10)
        numbers = answer.vector[1:5].tolist() + answer.vector[_HEAD:].tolist()
        assert all(number == 0 or number >= 10 for number in numbers)
        assert (answer.vector[1] - answer.vector[_HEAD:].sum()) not in range(1, 10)


def test_a_server_shows_no_small_cells_of_clients_that_give_them() -> None:
    found = pooled([np.repeat([2.0, 12.0, 22.0], [20, 3, 4])] * 2, least=1, shown=10)
    assert {at: int(size) for at, size in enumerate(found.histogram) if size} == {0: 40}
    assert found.suppressed == 14


# What is wrong


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"low": 1, "high": 1}, "Column.high: 1.0; expected a number above low, 1.0"),
        ({"low": 2, "high": 1}, "Column.high: 1.0; expected a number above low, 2.0"),
        ({"low": math.nan, "high": 1}, "Column.low: nan; expected a finite number"),
        ({"low": 0, "high": math.inf}, "Column.high: inf; expected a finite number"),
        ({"low": "0", "high": 1}, "Column.low: '0'; expected a finite number"),
        ({"low": False, "high": 1}, "Column.low: False; expected a finite number"),
        ({"low": 0, "high": 1, "bins": 0}, "Column.bins: 0; expected a whole number, 1 to 1000"),
        ({"low": 0, "high": 1, "bins": 1001}, "Column.bins: 1001; expected a whole number, 1 to 1000"),
        ({"low": 1e17, "high": 1e17 + 64, "bins": 50}, "Column.bins: 50; expected fewer: a float64 does not tell"),
    ],
)
def test_wrong_columns(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidOption, match=f"^{re.escape(error)}"):
        fl.Column(**arguments)


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({}, "columns: {}; expected columns by name, as in"),
        ([AGE], "expected columns by name, as in"),
        ({"": AGE}, "columns: ''; expected names of 1 to 100 printable characters"),
        ({"a\nb": AGE}, r"columns: 'a\nb'; expected names of 1 to 100 printable characters"),
        ({"age": (0, 120)}, "columns: 'age': (0, 120); expected an fl.Column"),
        ({str(number): fl.Column(0, 1) for number in range(101)}, "columns: '101 columns, 2727 cells'; expected 100"),
        ({str(number): fl.Column(0, 1, 1000) for number in range(17)}, "and 16384 cells with 7 for each column"),
    ],
)
def test_wrong_questions(columns: Any, error: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(error)):
        Query(columns)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"columns": 3},
        {"columns": {"age": 3}},
        {"columns": {"age": {"low": 0}}},
        {"columns": {"age": {"low": 1, "high": 0, "bins": 3}}},
        {"columns": {"age": {"low": 0, "high": 1, "bins": 10**12}}},
        {"columns": {}},
    ],
)
def test_a_wrong_question_of_a_server_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidUpdate, match="the server's question for statistics is not valid"):
        Query.of(config)
    assert Query.of(Query({"age": AGE}).config).config == Query({"age": AGE}).config


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"age": np.zeros((3, 2))}, "columns: 'age': float64 of shape (3, 2); expected an array of numbers or bools"),
        ({"age": np.array(["x"])}, "columns: 'age': <U1 of shape (1,); expected"),
        ({"age": np.array([1j])}, "columns: 'age': complex128 of shape (1,); expected"),
        ({"age": np.array([None, 1])}, "columns: 'age': object of shape (2,); expected"),
        ({"age": 3}, "columns: 'age': int64 of shape (); expected"),
    ],
)
def test_wrong_data_of_a_column_withhold_it(data: Any, error: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = Query({"age": AGE, "weight": AGE}).measure({**data, "weight": ages(1)}, 1)
    assert answer.withheld == {"age": "it is no array of numbers in one dimension; the log of the client says more"}
    assert answer.vector.any()
    assert error in caplog.text


def test_data_that_are_no_columns() -> None:
    with pytest.raises(InvalidUpdate, match="columns returned NoneType; expected a dict of arrays by name"):
        Query({"age": AGE}).measure(None, 1)


def changed(**changes: int) -> np.ndarray[Any, Any]:
    """A right vector with other numbers at some places."""
    vector = answers([ages(1)])[1][0].vector
    names = ("clients", "count", "missing", "below", "above", "sum", "squares", "cell")
    for name, value in changes.items():
        vector[names.index(name)] = value
    return vector


@pytest.mark.parametrize(
    "vector",
    [
        None,
        b"",
        [1, 2],
        changed()[:-1],
        changed()[None],
        changed().astype(float),
        changed().astype(">i8"),
        changed(clients=2),
        changed(clients=-1),
        changed(clients=0),
        changed(count=0),
        changed(count=3),
        changed(count=_MOST + 1),
        changed(missing=-1),
        changed(missing=_MOST + 1),
        changed(below=-1),
        changed(above=2**62),
        changed(sum=-1),
        changed(sum=500 * _SCALE),
        changed(squares=2**62),
        changed(squares=-1),
        changed(cell=-1),
        changed(cell=400),
    ],
    ids=str,
)
def test_a_vector_that_no_client_can_have_is_refused(vector: Any) -> None:
    query = Query({"age": AGE})
    with pytest.raises(InvalidUpdate, match=r"a vector: |'age': its numbers contradict each other"):
        query.checked(vector, 1)
    assert query.checked(changed(), 1) is not None


def test_numbers_of_clients_do_not_overflow_in_their_sum() -> None:
    query = Query({"age": fl.Column(0, 1, 1)})
    most = np.array([1, _MOST, _MOST, _MOST, _MOST, _MOST * _SCALE, _MOST * _SCALE, _MOST])
    assert query.results(query.checked(most, 1), 1)[0]["age"].mean == 1.0
    with pytest.raises(InvalidUpdate, match="contradict each other"):
        query.checked(most + most, 2)


@pytest.mark.parametrize("reasons", [None, [], {"height": "no"}, {"age": 3}])
def test_wrong_reasons_are_refused(reasons: Any) -> None:
    with pytest.raises(InvalidUpdate, match="withheld: expected a text by the name of a column"):
        Query({"age": AGE}).withheld(reasons)


def test_reasons_are_printable_and_short() -> None:
    found = Query({"age": AGE}).withheld({"age": "\x1b[2J" + "x" * 1000})
    assert found["age"].isprintable()
    assert len(found["age"]) < 300


def test_a_report_is_a_table_and_plain_values() -> None:
    client, other = uuid.UUID(int=1), uuid.UUID(int=2)
    columns = {"age": pooled([np.repeat([10.0, 70.0], [50, 50])])}
    failures = {other: ClientFailure(FailureKind.FAILED, "no disk")}
    report = fl.StatisticsReport(
        columns, {"height": "no client has it"}, (client,), {client: {"height": "no"}}, failures
    )
    assert str(report).splitlines() == [
        "column  clients  count  missing  below  above  suppressed  mean  sd  median",
        "age     1        100    0        0      0      0           40    30  15",
        "height: not shown: no client has it",
        f"client {client} has withheld height: no",
        f"client {other}: no disk",
    ]
    plain = json.loads(json.dumps(report.plain(), allow_nan=False))
    assert plain["columns"]["age"] | {"histogram": 0, "edges": 0} == {
        "low": 0,
        "high": 120,
        "bins": 24,
        "clients": 1,
        "count": 100,
        "missing": 0,
        "below": 0,
        "above": 0,
        "mean": pytest.approx(40),
        "variance": pytest.approx(900),
        "suppressed": 0,
        "histogram": 0,
        "edges": 0,
    }
    assert len(plain["columns"]["age"]["edges"]) == 25
    assert plain["withheld"] == {str(client): {"height": "no"}}
