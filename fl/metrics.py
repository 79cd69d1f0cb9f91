"""Metrics of clients: which values a client may report, and what a round makes of them. Pure.

fl/messages.py checks the metrics of each Update and Report. fl/report.py merges those of a round's clients. Clients
choose names, values and shapes, so this module bounds all three.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fl.checks import expect
from fl.errors import InvalidUpdate

Client = TypeVar("Client", bound=Hashable)
Plain: TypeAlias = float | NDArray[np.float64]

MAX_ELEMENTS = 2**16  # in the arrays of a message: 512 KiB, as a confusion matrix of 256 classes
MAX_ARRAYS = 100  # in a message
_MAX_DIMS = 8
_MAX_METRICS = 1000  # in one message, and in a report
_MAX_NAME = 100  # characters of a metric's name
_MAX_VALUE = float(np.finfo(np.float32).max)  # means over all clients and examples are finite
_FEW_NAMES = 100  # in a report up to which names count that few clients have: one client can invent as many
_EXPECTED = f"a number, or a list or array of 1 to {MAX_ELEMENTS} numbers in {_MAX_DIMS} dimensions at most"


@dataclass(frozen=True)
class Sum:
    """A metric that is summed over the clients, not averaged: a count, or a confusion matrix.

    The Update or Report that has it checks its value, and makes it a float or an array.
    """

    value: Any


Value: TypeAlias = Plain | Sum


class Merged(NamedTuple):
    """The metrics of a round.

    not_finite: of how many clients a metric was NaN or infinite, and was left out.
    left_out:   of how many it was left out because its form, the shape or whether it is a Sum, is not that of most, or
                because there was no room for it.
    sums:       the names of those that are sums.
    weights:    the number of examples over which a metric is a mean, where not all clients have it.
    """

    values: dict[str, Plain]
    not_finite: dict[str, int]
    left_out: dict[str, int]
    sums: set[str]
    weights: dict[str, int]

    def for_others(self) -> dict[str, Value]:
        """Return the metrics as those of one client, for `merged` with others. Without those that no client has."""
        known = {name: value for name, value in self.values.items() if _is_finite(value)}
        return {name: Sum(value) if name in self.sums else value for name, value in known.items()}


def checked(metrics: object) -> dict[str, Value]:
    """Return the metrics of a message: floats, arrays of float64 that are copies, and Sums. Raises InvalidUpdate.

    A value may be NaN or infinite, as is the AUC of a client whose examples are all of one class. Finite ones are
    bounded by what a float32 holds.
    """
    right = isinstance(metrics, Mapping) and len(metrics) <= _MAX_METRICS
    expect(right, "metrics", metrics, f"a mapping of at most {_MAX_METRICS} names to numbers")
    found: dict[str, Value] = {}
    arrays = total = 0  # checked as they come: arrays of a peer may share a buffer, and become more than its message
    for name, value in metrics.items():  # type: ignore[attr-defined]
        _check_name(name)
        plain = _checked_value(f"metrics[{name!r}]", _plain(value))
        if isinstance(plain, np.ndarray):
            arrays, total = arrays + 1, total + plain.size
            expect(arrays <= MAX_ARRAYS, "arrays in metrics", arrays, f"{MAX_ARRAYS} at most")
            expect(total <= MAX_ELEMENTS, "elements of all arrays in metrics", total, f"{MAX_ELEMENTS} at most")
        found[name] = Sum(plain) if isinstance(value, Sum) else plain
    return found


def check_names(metrics: object) -> None:
    """Raise InvalidUpdate unless this is a mapping whose keys are names of metrics."""
    right = isinstance(metrics, Mapping) and len(metrics) <= _MAX_METRICS
    expect(right, "metrics", metrics, f"a mapping of at most {_MAX_METRICS} names to numbers")
    for name in metrics:  # type: ignore[attr-defined]
        _check_name(name)


def _check_name(name: object) -> None:
    right = isinstance(name, str) and name.isprintable() and len(name) <= _MAX_NAME
    expect(right, "a name in metrics", name, f"a printable text of at most {_MAX_NAME} characters")


def sent(metrics: Mapping[str, Value]) -> dict[str, Value]:
    """Return these metrics, as far as one message may have them: of arrays the first."""
    arrays = total = 0
    found: dict[str, Value] = {}
    for name, value in metrics.items():
        size = elements({name: value})
        if size:
            if arrays == MAX_ARRAYS or total + size > MAX_ELEMENTS:
                continue
            arrays, total = arrays + 1, total + size
        found[name] = value
    return found


def elements(metrics: Mapping[str, Value]) -> int:
    """Return the number of elements in the arrays of these metrics."""
    others = [_plain(value) for value in metrics.values() if type(value) is not float]
    return sum(value.size for value in others if isinstance(value, np.ndarray))


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a report, or of one client, that are numbers, not arrays."""
    return {name: _plain(value) for name, value in metrics.items() if not isinstance(_plain(value), np.ndarray)}


def for_json(value: Plain) -> Any:
    """Return a metric as a number or lists. NaN and infinity become None: JSON has neither."""
    if not isinstance(value, np.ndarray):
        return value if math.isfinite(value) else None
    if not _is_finite(value):
        value = value.astype(object)
        value[~np.isfinite(value.astype(float))] = None
    return value.tolist()


def merged(
    clients: Mapping[Client, Mapping[str, Value]],
    weights: Mapping[Client, int],
    lost: Mapping[str, int],
    number: int,
    of_metric: Mapping[tuple[Client, str], int] = MappingProxyType({}),
) -> Merged:
    """Return the means of the clients' metrics, weighted by their number of examples, and the sums of Sums.

    clients: those that have metrics. number: of all.
    lost: of how many further clients there was no room for a metric.
    of_metric: the weight of a client for one metric, where it is another.

    First the names that most clients have, then in alphabetical order. Names that at most half of the clients have
    count only while there are fewer than 100: so one client can hide no metric of the others, and an honest minority
    keeps its own. Arrays are those that most clients have: callbacks write them to files, in each round. A metric that
    is finite at no client is NaN.
    """
    counts = Counter(name for metrics in clients.values() for name in metrics)
    for name in counts:
        counts[name] += lost.get(name, 0)
    of_most = sum(2 * count > number for count in counts.values())
    names = sorted(counts, key=lambda name: (-counts[name], name))[: min(max(of_most, _FEW_NAMES), _MAX_METRICS)]
    found = Merged({}, {}, {}, set(), {})
    total = sum(weights[peer] for peer in clients)
    for name in names:
        alike = _alike({peer: metrics[name] for peer, metrics in clients.items() if name in metrics})
        first = next(iter(alike.values()))
        if isinstance(_plain(first), np.ndarray) and 2 * counts[name] <= number:
            continue
        finite = {peer: value for peer, value in alike.items() if _is_finite(value)}
        if len(alike) < counts[name]:
            found.left_out[name] = counts[name] - len(alike)
        if len(finite) < len(alike):
            found.not_finite[name] = len(alike) - len(finite)
        if not finite:
            found.values[name] = _plain(first) * math.nan
        elif isinstance(first, Sum):
            found.sums.add(name)
            found.values[name] = _sum(map(_plain, finite.values()))
        else:
            of = [of_metric.get((peer, name), weights[peer]) for peer in finite]
            found.values[name] = _mean([*finite.values()], of)
            if sum(of) != total:
                found.weights[name] = sum(of)
    return found


def _checked_value(name: str, value: Any) -> Plain:
    try:
        if isinstance(value, list | tuple):
            array = np.array(value, np.float64)  # with the dtype: a text among others would make all as long
        elif getattr(value, "ndim", 0):
            array = np.asarray(value)
        else:
            number = float(value)
            return min(max(number, -_MAX_VALUE), _MAX_VALUE) if math.isfinite(number) else number
    except (TypeError, ValueError, RuntimeError, OverflowError):  # torch raises RuntimeError
        expect(False, name, value, _EXPECTED)
    right = array.dtype.kind in "biuf" and 0 < array.size <= MAX_ELEMENTS and array.ndim <= _MAX_DIMS
    if not right:
        raise InvalidUpdate(f"{name}: {array.dtype} of shape {array.shape}; expected {_EXPECTED}")
    array = array.astype(np.float64, order="C")  # a copy: a view would keep the memory of a whole message
    return np.clip(array, -_MAX_VALUE, _MAX_VALUE, out=array, where=np.isfinite(array))


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Sum) else value


def _is_finite(value: Value) -> bool:
    return math.isfinite(value) if type(value) is float else bool(np.isfinite(_plain(value)).all())


def _alike(values: dict[Client, Value]) -> dict[Client, Value]:
    """Return the values of the most frequent form."""
    if all(type(value) is float for value in values.values()):
        return values
    forms = {peer: (isinstance(value, Sum), np.shape(_plain(value))) for peer, value in values.items()}
    counts = Counter(forms.values())
    most = max(counts, key=lambda form: (counts[form], form))
    return {peer: value for peer, value in values.items() if forms[peer] == most}


def _mean(values: Sequence[Any], weights: Sequence[int]) -> Any:
    """Return the weighted mean. It is the sum of differences from one value: so equal values are their mean."""
    first = values[0]
    return first + _sum((value - first) * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def _sum(values: Iterable[Any]) -> Any:
    """Return the sum of numbers, or of arrays of one shape. Keeps one array at a time."""
    each = iter(values)
    first = next(each)
    if not isinstance(first, np.ndarray):
        return math.fsum(itertools.chain([first], each))
    total = first.copy()
    for value in each:
        total += value
    return total
