"""What a page shows of a federation besides its clients: its rounds, the log, the time left. Thread-safe.

Filled by the server's thread (fl/page/callback.py), or of a file (fl/page/file.py); read by fl/page/overview.py.
Bounded: a federation may run for months, and its clients choose names and values.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from netq.text import printable

Round: TypeAlias = dict[str, Any]

_ROUNDS = 10_000  # that are kept; of older ones a page has nothing
_LINES = 200  # of the log
_NAMES = 100  # metrics of a round, as of fl.Prometheus
_SPREAD = 20  # metrics whose spread over the clients is computed
_LAST = 5  # rounds whose median the time left goes by
_LONGEST = 300  # characters of a line, or a reason
_CLIENTS = 20  # of a round that are named as slowest


class History:
    """The rounds and the log of a federation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rounds: deque[Round] = deque(maxlen=_ROUNDS)
        self._lines: deque[tuple[float, str, str]] = deque(maxlen=_LINES)
        self._details: Mapping[str, Any] = {}
        self._current: tuple[int, float] | None = None  # the round that runs, and when it began
        self._added = 0  # rounds, with those that are not kept any more
        self.changes = 0  # counts what has been added

    def begin(self, details: Mapping[str, Any]) -> None:
        """Note what the federation is."""
        with self._lock:
            self._details = dict(details)
            self.changes += 1

    def round_begins(self, number: int) -> None:
        """Note that a round runs."""
        with self._lock:
            self._current = number, time.time()
            self.changes += 1

    def round_ends(self, record: Mapping[str, Any], when: float) -> None:
        """Add a round, as fl.callbacks.jsonl.record returns it, with the metrics of clients if there are any."""
        found = reduced(record, when)
        with self._lock:
            self._current = None
            self._rounds.append(found)
            self._added += 1
            self.changes += 1

    def log(self, level: str, text: str, when: float) -> None:
        """Add a line of the log."""
        with self._lock:
            self._lines.append((when, level, printable(text, _LONGEST)))
            self.changes += 1

    def replace(self, details: Mapping[str, Any], rounds: Sequence[tuple[Mapping[str, Any], float]]) -> None:
        """Take these rounds in place of those before: a file was read again."""
        found = [reduced(record, when) for record, when in rounds[-_ROUNDS:]]
        with self._lock:
            self._details, self._rounds = dict(details), deque(found, maxlen=_ROUNDS)
            self._added = len(self._rounds)
            self.changes += 1

    def rounds(self, after: int = 0) -> tuple[list[Round], int]:
        """Return the rounds that were added after the first `after`, the oldest first, and how many there were."""
        with self._lock:
            first = max(0, after - (self._added - len(self._rounds)))
            return list(islice(self._rounds, first, None)), self._added

    def summary(self, *, running: bool) -> dict[str, Any]:
        """Return what the head of a page shows. Times are in seconds since 1970."""
        with self._lock:
            details, last, lines = self._details, list(self._rounds)[-_LAST:], list(self._lines)
            current, added = self._current, self._added
        before, least = details.get("rounds_done"), details.get("min_clients")
        done = max((each["round"] for each in last if each["clients"]), default=before if type(before) is int else 0)
        total = details.get("rounds")
        if type(total) is not int or total < done:  # a script that asks for one round after the other
            total = None
        left = None
        if running and total is not None and last:
            left = statistics.median(each["seconds"] for each in last) * max(0, total - done)
            if current is not None:
                left = max(0.0, left - (time.time() - current[1]))
        return {
            "federation": details.get("federation", ""),
            "strategy": details.get("strategy", ""),
            "rounds": total,
            "done": done,
            "round": None if current is None else current[0],
            "since": None if current is None else current[1],
            "left": left,
            "privacy": last[-1]["privacy"] if last else "",
            "attempts": added,
            "min_clients": least if type(least) is int else 0,
            "log": [{"time": when, "level": level, "text": text} for when, level, text in reversed(lines)],
        }


def reduced(record: Mapping[str, Any], when: float) -> Round:
    """Return what a page shows of a round. `record` may be of a file of another version: what lacks is empty."""
    failures, skipped = _mapping(record, "failures"), _mapping(record, "skipped")
    staleness = [each for each in _mapping(record, "staleness").values() if isinstance(each, int)]
    names = _mapping(record, "names")
    return {
        "round": record["round"],
        "attempt": record.get("attempt", 1),
        "time": when,
        "clients": len(record.get("clients", ())),
        "failed": len(failures),
        "skipped": len(skipped),
        "privacy": _privacy(record),
        "seconds": float(record.get("seconds") or 0.0),
        "bytes_in": record["bytes_in"],
        "bytes_out": record["bytes_out"],
        "stale": len(staleness),
        "stalest": max(staleness, default=0),
        "failures": {
            printable(str(names.get(peer) or peer), _LONGEST): printable(str(_reason(each)), _LONGEST)
            for peer, each in islice(failures.items(), _CLIENTS)
        },
        "metrics": _numbers(record["metrics"]),
        "evaluation": _numbers(record["evaluation"]),
        "spread": {
            **_spread("metrics", _mapping(record, "client_metrics")),
            **_spread("evaluation", _mapping(record, "client_evaluation")),
        },
    }


def _mapping(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record.get(name)
    return found if isinstance(found, Mapping) else {}


def _privacy(record: Mapping[str, Any]) -> str:
    """Return what the models have said of a client at most; empty without differential privacy."""
    found = _mapping(record, "privacy")
    epsilon, delta = found.get("epsilon"), found.get("delta")
    if not isinstance(epsilon, int | float) or not isinstance(delta, int | float):
        return ""
    trusted = "noise by the server" if found.get("trusts_server") else "noise by the clients"
    return f"epsilon {epsilon:.3g} at delta {delta:g}, of each client; {trusted}"


def _reason(failure: object) -> object:
    return failure.get("reason", "") if isinstance(failure, Mapping) else failure


def _numbers(values: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the metrics that have a curve, under names that can be shown."""
    plain = ((name, value) for name, value in values.items() if isinstance(value, int | float | None))
    return {printable(str(name)): value for name, value in islice(plain, _NAMES)}


def _spread(kind: str, clients: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return minimum, quartiles and maximum over the clients, by metric: as "metrics/loss"."""
    values: dict[str, list[float]] = {}
    for metrics in clients.values():
        for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
            if isinstance(value, int | float) and (name in values or len(values) < _SPREAD):
                values.setdefault(name, []).append(float(value))
    return {f"{kind}/{printable(name)}": _five(each) for name, each in values.items() if len(each) > 1}


def _five(values: list[float]) -> list[float]:
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive")
    return [min(values), lower, middle, upper, max(values)]
