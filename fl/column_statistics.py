"""Statistics of the clients' data: what a server asks of each column, and what the sums over all clients say. Pure.

A client answers with one vector of whole numbers. The vector of a sum is the sum of the vectors, so it can be summed
under masks (fl/secure/counts.py). Each column has a block in it:

    clients  count  missing  below  above  sum  squares  cells ...

`count` is the number of values within the column's range; sum, squares and cells are of these. Sum and squares are of
the values scaled to 0 … 1, in whole numbers of 2**-30. A client without the column has zeros.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from fl.errors import InvalidUpdate
from fl.report import ClientFailure
from netq.errors import InvalidOption
from netq.text import printable
from netq.validate import expect, is_number, is_whole

log = logging.getLogger("netq.fl")

_SCALE = 2**30  # steps of the range, in sum and squares
_MOST = 2**32 - 1  # values of a column in all clients: 64 bits hold their sum
_LARGEST = 1e150  # of a range: a variance is finite
_FEW = 3  # different values whose counts follow from count, mean and variance
_MAX_COLUMNS = 100
_MAX_BINS = 1000  # of a column
_MAX_NUMBERS = 2**14  # in a vector, which is a small message: 128 KiB
_MAX_NAME = 100  # characters
_HEAD = 7  # numbers of a block before its cells
_COLUMNS = 'columns by name, as in {"age": fl.Column(low=0, high=120, bins=24)}'

Vector = NDArray[np.int64]


@dataclass(frozen=True)
class Column:
    """What a server asks of a column. Raises InvalidOption.

    low, high: the range of the values that are counted in; both belong to it. Others are counted as below or above it.
    bins:      cells of the histogram, all of the same width.
    """

    low: float
    high: float
    bins: int = 20

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            expect(is_number(value, -_LARGEST, _LARGEST), f"Column.{name}", value, "a finite number, as in 120.0")
            object.__setattr__(self, name, float(value))
        expect(self.low < self.high, "Column.high", self.high, f"a number above low, {self.low!r}")
        expect(is_whole(self.bins, 1, _MAX_BINS), "Column.bins", self.bins, f"a whole number, 1 to {_MAX_BINS}")
        distinct = bool((np.diff(self.edges) > 0).all())
        expect(distinct, "Column.bins", self.bins, "fewer: a float64 does not tell the edges of the cells apart")

    @property
    def edges(self) -> NDArray[np.float64]:
        """The edges of the cells, from low to high: one more than there are cells."""
        return np.linspace(self.low, self.high, self.bins + 1)

    @property
    def _numbers(self) -> int:
        return _HEAD + self.bins

    def _block(self, name: str, values: Any) -> tuple[Vector, Vector]:
        """Return the block of a client's values, and how often each different one is there. Raises InvalidUpdate."""
        array = np.asanyarray(values)
        if array.ndim != 1 or array.dtype.kind not in "biuf":
            raise InvalidUpdate(
                f"columns: {name!r}: {array.dtype} of shape {array.shape}; expected an array of numbers or bools in "
                'one dimension, with NaN for a missing value (float("nan"), not None)'
            )
        numbers = np.ma.filled(array.astype(np.float64), np.nan)
        there = numbers[~np.isnan(numbers)]
        inside = there[(there >= self.low) & (there <= self.high)]
        scaled = (inside - self.low) / (self.high - self.low)
        missing, below, above = numbers.size - there.size, (there < self.low).sum(), (there > self.high).sum()
        cells, _ = np.histogram(inside, self.bins, (self.low, self.high))
        block = np.array([1, inside.size, missing, below, above, _fixed(scaled), _fixed(scaled**2), *cells], np.int64)
        return block, np.unique(inside, return_counts=True)[1]


@dataclass(frozen=True, eq=False)
class ColumnStatistics:
    """What the clients that have given a column say of it together.

    column:    what was asked.
    clients:   how many have given it.
    count:     values within the range. Mean, variance and histogram are of these.
    missing, below, above: other values. A client gives 0 in place of a number below its minimum count.
    mean:      its error is 2**-31 of the range at most.
    variance:  over `count`, as numpy.var. Its error is 2**-29 of the squared range at most.
    histogram: values in each cell. A client gives 0 in place of a number below its minimum count (`suppressed`).
    """

    column: Column
    clients: int
    count: int
    missing: int
    below: int
    above: int
    mean: float
    variance: float
    histogram: Vector

    @classmethod
    def _of(cls, column: Column, block: Vector) -> Self:
        clients, count, missing, below, above, total, squares = (int(each) for each in block[:_HEAD])
        width = column.high - column.low
        mean = column.low + width * (total / (count * _SCALE))
        variance = width**2 * (max(0, squares * count * _SCALE - total**2) / (count * _SCALE) ** 2)
        return cls(column, clients, count, missing, below, above, mean, variance, block[_HEAD:].copy())

    @property
    def edges(self) -> NDArray[np.float64]:
        """The edges of the histogram's cells."""
        return self.column.edges

    @property
    def suppressed(self) -> int:
        """Values within the range that are in no cell: their cells had too few at their clients, or in all."""
        return self.count - int(self.histogram.sum())

    def quantile(self, q: float) -> float:
        """Return the value that a share `q` of the values does not exceed, interpolated in the histogram.

        Its error is the width of a cell at most, if no value is suppressed. Those that are suppressed are not in it.
        NaN if all are. Raises InvalidOption unless q is from 0 to 1.
        """
        expect(is_number(q, 0, 1), "quantile: q", q, "a number from 0 to 1")
        cells = np.flatnonzero(self.histogram)
        if not cells.size:
            return math.nan
        upto = self.histogram[cells].cumsum()
        rank = q * int(upto[-1])
        at = int(np.searchsorted(upto, rank))
        low, high = self.edges[cells[at] : cells[at] + 2]
        size = int(self.histogram[cells[at]])
        return float(low + (high - low) * (1 - (int(upto[at]) - rank) / size))

    def plain(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        found = {name: value for name, value in vars(self).items() if name != "column"}
        edges, cells = self.edges.tolist(), self.histogram.tolist()
        return {**asdict(self.column), **found, "suppressed": self.suppressed, "histogram": cells, "edges": edges}


@dataclass(frozen=True, eq=False)
class StatisticsReport:
    """What the clients say of their data. As text it is a table.

    columns:  the statistics by column.
    hidden:   why a column that was asked for is not in `columns`.
    clients:  those whose answers are in it.
    withheld: what clients have not given, and why, by client and column. Empty under secure aggregation.
    failures: of the other clients that were asked.
    """

    columns: Mapping[str, ColumnStatistics]
    hidden: Mapping[str, str]
    clients: tuple[uuid.UUID, ...]
    withheld: Mapping[uuid.UUID, Mapping[str, str]]
    failures: Mapping[uuid.UUID, ClientFailure]

    def __str__(self) -> str:
        head = ("column", "clients", "count", "missing", "below", "above", "suppressed", "mean", "sd", "median")
        rows = [head, *(_row(name, each) for name, each in self.columns.items())] if self.columns else []
        widths = [max(len(row[at]) for row in rows) for at in range(len(head))] if rows else []
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        lines += [f"{name}: not shown: {why}" for name, why in self.hidden.items()]
        for client, reasons in self.withheld.items():
            lines += [f"client {client} has withheld {name}: {why}" for name, why in reasons.items()]
        lines += [f"client {client}: {failure}" for client, failure in self.failures.items()]
        return "\n".join(line.rstrip() for line in lines)

    def plain(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        return {
            "columns": {name: each.plain() for name, each in self.columns.items()},
            "hidden": dict(self.hidden),
            "clients": [str(client) for client in self.clients],
            "withheld": {str(client): dict(reasons) for client, reasons in self.withheld.items()},
            "failures": {str(client): str(failure) for client, failure in self.failures.items()},
        }


class Answer(NamedTuple):
    """What one client gives: its vector, and why it withholds columns, by name."""

    vector: Vector
    withheld: dict[str, str]


class Query:
    """The columns that a server asks for, and where each has its block in a vector. Raises InvalidOption.

    whose:   the name of `columns` in errors.
    numbers: of a vector.
    """

    def __init__(self, columns: Mapping[str, Column], whose: str = "columns") -> None:
        right = isinstance(columns, Mapping) and len(columns) > 0
        expect(right, whose, columns, _COLUMNS)
        for name, column in columns.items():
            right = isinstance(name, str) and name.isprintable() and 0 < len(name) <= _MAX_NAME
            expect(right, whose, name, f"names of 1 to {_MAX_NAME} printable characters")
            expect(isinstance(column, Column), f"{whose}: {name!r}", column, "an fl.Column, as in fl.Column(0, 120)")
        self._columns = dict(columns)
        self.numbers = sum(column._numbers for column in columns.values())
        form = f"{_MAX_COLUMNS} columns, and {_MAX_NUMBERS} cells with {_HEAD} for each column, at most"
        right = len(columns) <= _MAX_COLUMNS and self.numbers <= _MAX_NUMBERS
        expect(right, whose, f"{len(columns)} columns, {self.numbers} cells", form)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Return the query of a task's config. Raises InvalidUpdate."""
        try:
            return cls({name: Column(**values) for name, values in config["columns"].items()})
        except (InvalidOption, KeyError, AttributeError, TypeError) as error:
            raise InvalidUpdate(f"the server's question for statistics is not valid: {error}") from error

    @property
    def config(self) -> dict[str, Any]:
        """The config of a task that asks this."""
        return {"columns": {name: asdict(column) for name, column in self._columns.items()}}

    def measure(self, data: Any, least: int) -> Answer:
        """Return what a client gives of its data. Raises InvalidUpdate.

        data:  what the client's `columns` has returned.
        least: a column with fewer values is withheld, and a smaller number of values is given as 0.
        """
        if not isinstance(data, Mapping):
            raise InvalidUpdate(f"columns returned {type(data).__name__}; expected a dict of arrays by name")
        answer = Answer(np.zeros(self.numbers, np.int64), {})
        for name, column, block in self._blocks(answer.vector):
            if name not in data:
                answer.withheld[name] = "it has no such column"
                continue
            try:
                found, counts = column._block(name, data[name])
            except InvalidUpdate as error:  # whose text has the number of records
                log.error("%s", error)
                answer.withheld[name] = "it is no array of numbers in one dimension; the log of the client says more"
                continue
            rare = counts[counts < least]
            if rare.size and (counts.size <= _FEW or rare.sum() < least) and least <= found[1]:
                answer.withheld[name] = (
                    f"its values that are there fewer than {least} times are fewer than {least} together, or it has "
                    f"{_FEW} different values at most: count, mean and variance would tell them"
                )
                continue
            block[:] = _protected(found, least, counts.size - _FEW if rare.size else None)
            if not block[0]:
                answer.withheld[name] = f"it has fewer than {least} values from {column.low:g} to {column.high:g}"
        return answer

    def checked(self, vector: Any, clients: int) -> Vector:
        """Return a vector. Raises InvalidUpdate unless it can be that of so many clients."""
        right = isinstance(vector, np.ndarray) and vector.dtype == np.int64 and vector.shape == (self.numbers,)
        if not right:
            form = (
                f"{vector.dtype} of shape {vector.shape}" if isinstance(vector, np.ndarray) else type(vector).__name__
            )
            raise InvalidUpdate(f"a vector: {form}; expected {self.numbers} whole numbers of 64 bits")
        for name, _, block in self._blocks(vector):
            given, count, missing, below, above, total, squares = (int(each) for each in block[:_HEAD])
            cells = block[_HEAD:]
            right = 0 <= given <= min(clients, count) and max(count, missing, below, above) <= _MOST
            right = right and min(missing, below, above) >= 0 and (given > 0 or not block.any())
            right = right and 0 <= squares <= total <= count * _SCALE
            right = right and cells.min() >= 0 and cells.max() <= count and int(cells.sum()) <= count
            if not right:
                raise InvalidUpdate(
                    f"column {name!r}: its numbers contradict each other; expected those of {clients} client(s), "
                    f"with up to {_MOST} values, of which each is in one cell at most"
                )
        return cast(Vector, vector)

    def withheld(self, reasons: Any) -> dict[str, str]:
        """Return why a client withholds columns. Raises InvalidUpdate."""
        right = isinstance(reasons, dict) and reasons.keys() <= self._columns.keys()
        if not (right and all(isinstance(why, str) for why in reasons.values())):
            raise InvalidUpdate("withheld: expected a text by the name of a column that was asked for")
        return {name: printable(why, 2 * _MAX_NAME) for name, why in reasons.items()}

    def results(self, total: Vector, least: int) -> tuple[dict[str, ColumnStatistics], dict[str, str]]:
        """Return what a sum says of each column, and why it is not shown of the others: they have too few values."""
        found, hidden = dict[str, ColumnStatistics](), dict[str, str]()
        for name, column, block in self._blocks(total):
            if not block[0]:
                hidden[name] = "no client has given it"
            elif (shown := _protected(block, least))[0]:
                found[name] = ColumnStatistics._of(column, shown)
            else:
                hidden[name] = f"it has fewer than {least} values in all clients"
        return found, hidden

    def _blocks(self, vector: Vector) -> Iterator[tuple[str, Column, Vector]]:
        place = 0
        for name, column in self._columns.items():
            yield name, column, vector[place : place + column._numbers]
            place += column._numbers


def _fixed(scaled: NDArray[np.float64]) -> int:
    """Return a sum in steps of the range: rounding each value would say which values it is of."""
    return int(np.rint(scaled.sum() * _SCALE))


def _protected(block: Vector, least: int, most: int | None = None) -> Vector:
    """Return a block without numbers of 1 to least - 1 values: zeros if its count is one, else zeros in their place.

    If `count` and the cells that are left would tell such a number, as that of a single cell, the next smallest cell is
    0, too.

    most: fewer cells than this are left, as each is one more equation for how often each different value is there.
    """
    count, cells = int(block[1]), block[_HEAD:]
    if count < max(1, least):
        return np.zeros_like(block)
    shown = cells >= least
    for at in np.argsort(np.where(shown, cells, count + 1), kind="stable"):
        is_one = 0 < count - int(cells[shown].sum()) < least
        if not (shown[at] and (is_one or (most is not None and shown.sum() >= most))):
            break
        shown[at] = False
    others = np.where(block[2:5] < least, 0, block[2:5])
    return np.concatenate([block[:2], others, block[5:_HEAD], np.where(shown, cells, 0)])


def _row(name: str, column: ColumnStatistics) -> tuple[str, ...]:
    counts = (column.clients, column.count, column.missing, column.below, column.above, column.suppressed)
    numbers = (column.mean, math.sqrt(column.variance), column.quantile(0.5))
    return (name, *map(str, counts), *(f"{each:.6g}" for each in numbers))
