"""Callbacks that watch a metric: `SaveBest` keeps the best model, `EarlyStopping` ends the rounds.

Made by users and by fl/__main__.py; called by the server's thread after each round (fl/callbacks/base.py).
"""

from __future__ import annotations

import json
import logging
import math
import os
import statistics
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fl.callbacks.base import Callback
from fl.report import MEASURED, RoundReport
from fl.tensors import files
from fl.tensors.spec import Model
from netq.utils.files import read_regular, replacing
from netq.validate import expect, flag, is_number, whole

log = logging.getLogger("netq.fl")

Of: TypeAlias = Literal["mean", "median"] | None

_MEDIAN_OF = 5  # clients from which the median is the default: of five it holds against two
_NAMED = 20  # metrics in a warning


class _Watched:
    """A metric, and the best value that it has had. Reads the evaluation, and the metrics of training without it."""

    def __init__(self, owner: str, metric: str, lowest: bool, of: Of, min_delta: float = 0.0) -> None:
        expect(isinstance(metric, str) and metric != "", f"{owner}.metric", metric, 'a name, as in "accuracy"')
        flag(f"{owner}.lowest", lowest)
        expect(of in (None, "mean", "median"), f"{owner}.of", of, '"mean", "median", or None')
        self.metric = metric
        self.best: float | None = None
        self._of = of
        self._sign = -1 if lowest else 1
        self._min_delta = min_delta
        self._is_warned = False

    def improves(self, report: RoundReport) -> bool | None:
        """Note the value of a round. Return whether it is the best one; None if there is no value."""
        if not report.clients:  # the attempt does not count, and the model is as before
            return None
        value = self._value(report)
        if value is None or not math.isfinite(value):
            if not self._is_warned:
                self._is_warned = True
                known = ", ".join(list(dict.fromkeys([*report.metrics, *report.evaluation]))[:_NAMED]) or "none"
                log.warning("round %d has no metric %r; it has: %s", report.number, self.metric, known)
            return None
        if self.best is not None and self._sign * (value - self.best) <= self._min_delta:
            return False
        self.best = value
        return True

    def _value(self, report: RoundReport) -> float | None:
        """Return the value of a round, None if it has none.

        First what at least half of the round's clients have, then what half of those have that evaluate, or train: one
        client could replace the metric of training by one of its evaluation.
        """
        evaluation, training = (
            (report.evaluation, report.client_evaluation.values()),
            (report.metrics, report.client_metrics.values()),
        )
        for (means, clients), count in (
            (evaluation, len(report.clients)),
            (training, len(report.client_metrics)),
            (evaluation, len(report.client_evaluation)),
        ):
            values = [metrics[self.metric] for metrics in clients if self.metric in metrics]
            if self.metric in means and (self.metric.startswith(MEASURED) or 2 * len(values) >= count):
                is_median = self._of == "median" or (self._of is None and len(values) >= _MEDIAN_OF)
                return statistics.median(values) if values and is_median else means[self.metric]
        return None


class SaveBest(Callback):
    """Writes the model of the best round so far to a file, and its round and value to a .json file next to it.

    path:   of the file, .npz (`np.load` reads it) or .safetensors. A server refuses a model that it cannot hold.
    metric: name of a metric of the evaluation, or of training; with fl.Measured, "server_accuracy" and the like.
    lowest: whether the lowest value is the best.
    of:     "mean": the mean by number of examples; "median": the median of the clients, which fewer than half of them
            cannot move out of the range of the others' values; None: the median of five or more clients, the mean of
            fewer. What fl.Measured adds is neither.

    A server that resumes goes on with the value in the .json file; a federation that begins with round 1 begins anew.
    """

    def __init__(self, path: str | os.PathLike[str], metric: str, *, lowest: bool = False, of: Of = None) -> None:
        self._path = Path(path)
        files.check_name(self._path, "SaveBest.path")
        self._record = self._path.with_suffix(".json")
        self._watched = _Watched("SaveBest", metric, lowest, of)
        self._watched.best = self._kept()

    def check(self, model: Model) -> None:
        """Raise InvalidOption if the file cannot hold the model."""
        files.check(self._path, model, "SaveBest.path")

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Save the model if it is the best."""
        if report.number == 1:
            self._watched.best = None
        before = self._watched.best
        if not self._watched.improves(report):
            return
        try:
            self._save(report.number, model)
        except BaseException:  # a full disk, for example: the file has an older round, which the next one may surpass
            self._watched.best = before
            raise

    def _save(self, number: int, model: Model) -> None:
        files.save(self._path, model)
        record = {"round": number, "metric": self._watched.metric, "value": self._watched.best}
        with replacing(self._record, 0o666) as file:
            file.write(json.dumps(record).encode() + b"\n")

    def _kept(self) -> float | None:
        """Return the best value of a server before this one, None if there is none."""
        try:
            found: Any = json.loads(read_regular(self._record))
        except (OSError, ValueError, RecursionError):
            return None
        match found:
            case {"metric": self._watched.metric, "value": float(value)} if math.isfinite(value):
                return value
            case _:
                return None


class EarlyStopping(Callback):
    """Ends `Server.rounds` when a metric has not improved for some rounds. The federation is then over, as at its end.

    metric:    name of a metric of the evaluation, or of training.
    patience:  rounds without an improvement.
    min_delta: what counts as an improvement: more than this.
    lowest:    whether lower values are better.
    of:        the mean or the median of the clients, as of SaveBest.
    """

    def __init__(
        self, metric: str, patience: int = 10, *, min_delta: float = 0.0, lowest: bool = False, of: Of = None
    ) -> None:
        whole("EarlyStopping.patience", patience, 1)
        expect(is_number(min_delta, 0), "EarlyStopping.min_delta", min_delta, "a number, 0 or more")
        self._watched = _Watched("EarlyStopping", metric, lowest, of, min_delta)
        self._patience = patience
        self._without = 0  # rounds

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Count the rounds without an improvement. Those without a value are not counted."""
        improved = self._watched.improves(report)
        if improved is None:
            return
        self._without = 0 if improved else self._without + 1
        if self._without >= self._patience:
            text = "round %d: %s has not improved for %d rounds; the best value was %g"
            log.info(text, report.number, self._watched.metric, self._without, self._watched.best)
            self.stop = True
