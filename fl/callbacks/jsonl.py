"""Round reports as plain values (`record`), as numbers by name (`scalars`), and in a file (`JsonLines`).

Made by users and by fl/__main__.py; called by the server's thread after each round (fl/callbacks/base.py). The
callbacks for TensorBoard, MLflow and Prometheus write the same numbers to other places. Never sees an update.
"""

from __future__ import annotations

import json
import logging
import os
import reprlib
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from fl.callbacks.base import Callback, Callbacks
from fl.metrics import for_json
from fl.metrics import scalars as numbers
from fl.report import MEASURED, ClientFailure, FailureKind, MaskedSum, PrivacySpent, RoundReport
from fl.tensors.spec import Model
from netq.text import describe, printable
from netq.validate import expect, is_function

log = logging.getLogger("netq.fl")

_BEGIN: dict[str, Any] = {}  # stands for a line before the first round
_OF_CLIENTS = ("client_metrics", "client_evaluation", "num_examples", "evaluation_examples")

Measure: TypeAlias = "Callable[[Model], Mapping[str, float]]"


def record(report: RoundReport, *, client_metrics: bool = False) -> dict[str, Any]:
    """Return a report as plain values. Arrays become lists; NaN and infinity become None: JSON has neither.

    client_metrics: whether to add the metrics and the number of examples of each client. Its arrays are not added: a
                    client could fill a disk.
    """
    names = [each.name for each in fields(report) if client_metrics or each.name not in _OF_CLIENTS]
    return {"round" if name == "number" else name: _plain(getattr(report, name)) for name in names}


def scalars(report: RoundReport) -> dict[str, float]:
    """Return the numbers of a report by name, as in "evaluation/accuracy". Arrays are not among them.

    Failures are counted by kind, 0 included.
    """
    return {
        **{f"metrics/{name}": value for name, value in numbers(report.metrics).items()},
        **{f"evaluation/{name}": value for name, value in numbers(report.evaluation).items()},
        **({} if report.privacy is None else {"epsilon": report.privacy.epsilon}),
        "clients": len(report.clients),
        "skipped": len(report.skipped),
        "evaluation_skipped": len(report.evaluation_skipped),
        "seconds": report.seconds,
        "bytes/in": report.bytes_in,
        "bytes/out": report.bytes_out,
        **_counts("failures", report.failures),
        **_counts("evaluation_failures", report.evaluation_failures),
    }


def _plain(value: Any) -> Any:
    """Return a field of a report for JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, MaskedSum | PrivacySpent):
        return {name: _plain(each) for name, each in asdict(value).items()}
    if isinstance(value, Sequence):
        return [str(peer) for peer in value]
    if isinstance(value, ClientFailure):
        return {"why": value.why.name, "reason": value.reason}
    if isinstance(value, Mapping):  # in another one: the metrics of a client
        return {str(key): _plain(numbers(each) if isinstance(each, Mapping) else each) for key, each in value.items()}
    return for_json(value)


def _counts(name: str, failures: Mapping[uuid.UUID, ClientFailure]) -> dict[str, float]:
    kinds = [each.why for each in failures.values()]
    return {f"{name}/{why.name.lower()}": kinds.count(why) for why in FailureKind}


class Measured(Callbacks):
    """Adds the result of `measure(model)` to the report's evaluation, then calls other callbacks with it.

    The names get the prefix `server_`, which no name of a client's metric in a report has. The server waits for
    `measure`. If it raises, or returns no dict of numbers, the error is logged and the report stays as it is.
    """

    def __init__(self, measure: Measure, callbacks: Iterable[Callback]) -> None:
        expect(is_function(measure), "Measured.measure", measure, "a function of a model, not an async one")
        super().__init__(callbacks)
        self._measure = measure

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Measure, and pass the report on with the result. An attempt that does not count has no new model."""
        if report.clients:
            measured = {printable(f"{MEASURED}{name}"): value for name, value in self._results(model).items()}
            report = replace(report, evaluation={**measured, **report.evaluation})
        super().round_ends(report, model)

    def _results(self, model: Model) -> dict[str, float]:
        try:
            results = self._measure(model)
        except Exception as error:  # an error of the user's code must not end the round
            return self._log_error(f"raised {describe(error)}", error)
        try:
            return {name: float(value) for name, value in results.items()}
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:  # torch raises RuntimeError
            return self._log_error(f"returned {_types(results)}; expected a dict of numbers by name", error)

    def _log_error(self, what: str, error: Exception) -> dict[str, float]:
        log.error("%s %s", name_of(self._measure), what)
        log.debug("where it happened", exc_info=error)
        return {}


class JsonLines(Callback):
    """Appends a JSON object to a file after each round: the values of `record`, and `time` in seconds since 1970.

    A line before the first round has `begin`: the seeds and versions that are needed to repeat the run.

    client_metrics: whether to write the metrics and the number of examples of each client, too.

    The file is open only while a line is written, so it may be moved between two rounds. The constructor raises OSError
    if the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, client_metrics: bool = False) -> None:
        self._path = Path(path)
        self._client_metrics = client_metrics
        self._path.open("ab").close()

    def federation_begins(self, details: Mapping[str, Any]) -> None:
        """Append a line."""
        self._append({"begin": details})

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Append a line."""
        self._append(record(report, client_metrics=self._client_metrics))

    def _append(self, values: Mapping[str, Any]) -> None:
        line = json.dumps({"time": time.time(), **values}, allow_nan=False)
        with self._path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a full disk, or a loss of power, has cut the last line
                    line = f"\n{line}"
            file.write(f"{line}\n".encode())


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the rounds of a file of JsonLines, each as `record` returns it.

    A restarted server may repeat rounds, and begins at 1 without a checkpoint: a round replaces earlier lines of its
    number and above. Other lines are left out with a warning: a full disk or a power loss may have cut one.

    Raises OSError if the file cannot be read, ValueError if no line is a round.
    """
    rounds: list[dict[str, Any]] = []
    skipped: list[int] = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
        round = _parsed(line)
        if round is _BEGIN:
            continue
        if round is None:
            skipped.append(number)
            continue
        while rounds and rounds[-1]["round"] >= round["round"]:
            rounds.pop()
        rounds.append(round)
    if skipped and not rounds:
        raise ValueError(
            f"{path}: no line of it is a round; give a file that fl.JsonLines has written ([callbacks] json)"
        )
    if skipped:
        log.warning("%s: no round in line %s; left out", path, reprlib.repr(skipped)[1:-1])
    return rounds


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the values of a line, `_BEGIN` for one before the first round, None for any other."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match values:
        case {"begin": dict()}:
            return _BEGIN
        case {"round": int(), "metrics": dict(), "evaluation": dict(), "bytes_in": int(), "bytes_out": int()}:
            return dict(values)
        case _:
            return None


def missing(what: str, needs: str, packages: str, error: ImportError) -> ImportError:
    """Return the error of a callback that needs a library that is not installed."""
    return ImportError(f"{what} needs {needs} ({error}): pip install {packages}", name=error.name)


def name_of(function: Callable[..., Any]) -> str:
    """Return "module:function", for a message."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{getattr(function, '__module__', type(function).__module__)}:{name}"


def _types(results: object) -> str:
    """Return the type's name; of a mapping, the type of each value by name."""
    if not isinstance(results, Mapping):
        return type(results).__name__
    return "{" + ", ".join(f"{name!r}: {type(value).__name__}" for name, value in results.items()) + "}"
