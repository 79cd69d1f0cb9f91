"""Metrics of clients: which values a client may report, and what a round makes of them. Pure.

fl/messages.py checks the metrics of each Update and Report. fl/report.py merges those of a round's clients. Clients
choose names and values, so this module bounds both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from fl.tensors.checks import expect

Client = TypeVar("Client", bound=Hashable)

_MAX_METRICS = 1000  # in one message, and in a report
_MAX_NAME = 100  # characters of a metric's name
_MAX_VALUE = float(np.finfo(np.float32).max)  # means over all clients and examples are finite
_FEW_NAMES = 100  # in a report up to which names count that few clients have: one client can invent as many


class Merged(NamedTuple):
    """The metrics of a round. `not_finite`: of how many clients a metric was NaN or infinite, and left out."""

    values: dict[str, float]
    not_finite: dict[str, int]


def checked(metrics: object) -> dict[str, float]:
    """Return the metrics of a message, as floats. Raises InvalidUpdate.

    A value may be NaN or infinite, as is the AUC of a client whose examples are all of one class. Finite ones are
    bounded by what a float32 holds.
    """
    right = isinstance(metrics, Mapping) and len(metrics) <= _MAX_METRICS
    expect(right, "metrics", metrics, f"a mapping of at most {_MAX_METRICS} names to numbers")
    found = {}
    for name, value in metrics.items():  # type: ignore[attr-defined]
        right = isinstance(name, str) and name.isprintable() and len(name) <= _MAX_NAME
        expect(right, "a name in metrics", name, f"a printable text of at most {_MAX_NAME} characters")
        found[name] = _number(name, value)
    return found


def _number(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        expect(False, f"metrics[{name!r}]", value, "a number")
    return min(max(number, -_MAX_VALUE), _MAX_VALUE) if math.isfinite(number) else number


def merged(clients: Mapping[Client, Mapping[str, float]], weights: Mapping[Client, int]) -> Merged:
    """Return the means of the clients' metrics, weighted by their number of examples.

    First the names that most clients have, then in alphabetical order. Names that at most half of the clients have
    count only while there are fewer than 100: so one client can hide no metric of the others, and an honest minority
    keeps its own. A metric that is finite at no client is NaN.
    """
    counts = Counter(name for metrics in clients.values() for name in metrics)
    of_most = sum(2 * count > len(clients) for count in counts.values())
    names = sorted(counts, key=lambda name: (-counts[name], name))[: min(max(of_most, _FEW_NAMES), _MAX_METRICS)]
    values, not_finite = {}, {}
    for name in names:
        peers = [peer for peer, metrics in clients.items() if name in metrics and math.isfinite(metrics[name])]
        if len(peers) < counts[name]:
            not_finite[name] = counts[name] - len(peers)
        values[name] = _mean([clients[peer][name] for peer in peers], [weights[peer] for peer in peers])
    return Merged(values, not_finite)


def _mean(values: list[float], weights: list[int]) -> float:
    """Return the weighted mean. It is the sum of differences from one value: so equal values are their mean."""
    if not values:
        return math.nan
    sums = math.fsum((value - values[0]) * weight for value, weight in zip(values, weights, strict=True))
    return values[0] + sums / sum(weights)
