"""What is kept of each round: in plain values (`record`), as numbers by name (`scalars`), in a file (`JsonLines`).

Made by users and by fl/__main__.py; called by the server's thread after each round (see fl/callbacks/base.py). Beside
it, fl/callbacks/tensorboard.py, fl/callbacks/mlflow.py and fl/callbacks/prometheus.py keep the same numbers elsewhere.
Never sees an update.
"""

from __future__ import annotations

import json
import logging
import math
import os
import reprlib
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from fl.callbacks.base import Callback, Callbacks, ClientState
from fl.report import FailureKind, RoundReport
from fl.tensors.spec import Model

log = logging.getLogger("netq.fl")

MEASURED = "server_"  # before the names of what `Measured` finds

Measure: TypeAlias = "Callable[[Model], Mapping[str, float]]"


def record(report: RoundReport) -> dict[str, Any]:
    """Return a report in plain values; a number that is not finite is None, as JSON has none."""
    return {
        "round": report.number,
        "clients": [str(peer) for peer in report.clients],
        "failures": {str(p): {"why": r.why.name, "reason": r.reason} for p, r in report.failures.items()},
        "staleness": {str(peer): rounds for peer, rounds in report.staleness.items()},
        "metrics": _finite(report.metrics),
        "evaluation": _finite(report.evaluation),
        "seconds": report.seconds,
        "bytes_in": report.bytes_in,
        "bytes_out": report.bytes_out,
    }


def scalars(report: RoundReport) -> dict[str, float]:
    """Return the numbers of a report by name, as in "evaluation/accuracy"; failures of each kind, those of 0 too."""
    kinds = [refusal.why for refusal in report.failures.values()]
    return {
        **{f"metrics/{name}": value for name, value in report.metrics.items()},
        **{f"evaluation/{name}": value for name, value in report.evaluation.items()},
        "clients": len(report.clients),
        "seconds": report.seconds,
        "bytes/in": report.bytes_in,
        "bytes/out": report.bytes_out,
        **{f"failures/{why.name.lower()}": kinds.count(why) for why in FailureKind},
    }


class Measured(Callback):
    """Tells other callbacks of rounds, with what `measure(model)` finds added to the report's evaluation.

    Its names get the prefix `server_`: the clients' evaluation may have the same ones. The server waits while it
    measures. Where it raises, or returns something else, that is logged, and the others are told without it.
    """

    def __init__(self, measure: Measure, callbacks: Iterable[Callback]) -> None:
        self._measure = measure
        self._callbacks = Callbacks(callbacks)

    def round_begins(self, number: int, clients: Sequence[uuid.UUID]) -> None:
        """Tell the others."""
        self._callbacks.round_begins(number, clients)

    def client_is(self, client: uuid.UUID, state: ClientState, size: int) -> None:
        """Tell the others."""
        self._callbacks.client_is(client, state, size)

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Measure, and tell the others."""
        found = {f"{MEASURED}{name}": value for name, value in self._measured(model).items()}
        self._callbacks.round_ends(replace(report, evaluation={**report.evaluation, **found}), model)

    def _measured(self, model: Model) -> dict[str, float]:
        try:
            found = self._measure(model)
        except Exception as error:  # the user's code; the round has nothing to do with it
            return self._nothing(f"raised {type(error).__name__}: {error}", error)
        try:
            return {name: float(value) for name, value in found.items()}
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:  # the last is torch's
            return self._nothing(f"returned {_kinds(found)}; expected a dict of numbers by name", error)

    def _nothing(self, why: str, error: Exception) -> dict[str, float]:
        log.error("%s %s", name_of(self._measure), why)
        log.debug("where it happened", exc_info=error)
        return {}


class JsonLines(Callback):
    """Appends a JSON object to a file after each round: what `record` has, and `time`, in seconds since 1970.

    The file is open only meanwhile, so it may be moved away between two rounds. Raises OSError, if it cannot be
    written to, at once.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        with self._path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")  # the last line was cut off: it is not to spoil the next

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Append a line."""
        line = json.dumps({"time": time.time(), **record(report)}, allow_nan=False)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the rounds of a file of JsonLines, each as `record` has it; raises OSError.

    A server that was started again may repeat rounds, and begins at 1 where it has no checkpoint: a round is in the
    place of those of its number and above that stand before it. A line that is none of ours is left out, with a
    warning: a loss of power may have cut one off. Raises ValueError, if there are lines, and none is ours.
    """
    rounds: list[dict[str, Any]] = []
    others: list[int] = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        found = _parsed(line)
        if found is None:
            others.append(number)
            continue
        while rounds and rounds[-1]["round"] >= found["round"]:
            rounds.pop()
        rounds.append(found)
    if others and not rounds:
        raise ValueError(
            f"{path}: no line of it is a round; give a file that fl.JsonLines has written ([callbacks] json)"
        )
    if others:
        log.warning("%s: no round in line %s; left out", path, reprlib.repr(others)[1:-1])
    return rounds


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    match found:
        case {"round": int(), "metrics": dict(), "evaluation": dict(), "bytes_in": int(), "bytes_out": int()}:
            return dict(found)
        case _:
            return None


def missing(what: str, needs: str, packages: str, error: ImportError) -> ImportError:
    """Return the error of a callback that needs more than is installed."""
    return ImportError(f"{what} needs {needs} ({error}): pip install {packages}", name=error.name)


def name_of(function: Callable[..., Any]) -> str:
    """Return "module:function", as it is for a sentence."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', type(function).__module__)}:{name}"


def _kinds(found: object) -> str:
    """Return what it is that is no dict of numbers; of a dict, each value's type."""
    if not isinstance(found, Mapping):
        return type(found).__name__
    return "{" + ", ".join(f"{name!r}: {type(value).__name__}" for name, value in found.items()) + "}"


def _finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}
