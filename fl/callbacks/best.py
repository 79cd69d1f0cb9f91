"""Callbacks that watch a metric: `SaveBest` keeps the best model, `EarlyStopping` ends the rounds.

Made by users and by fl/__main__.py; called by the server's thread after each round (fl/callbacks/base.py).
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from fl.callbacks.base import Callback
from fl.metrics import Sum
from fl.report import MEASURED, RoundReport
from fl.tensors import files
from fl.tensors.spec import Model
from netq.utils.files import read_regular, replacing
from netq.validate import expect, is_number, whole

log = logging.getLogger("netq.fl")

Of: TypeAlias = Literal["mean", "median"] | None
Source: TypeAlias = Literal["evaluation", "training"]

_MEDIAN_OF = 5  # clients from which the median is the default: of five it holds against two
_NAMED = 20  # metrics in a warning

# Words in a metric's name that say whether lower or higher values are better. A name with both is low: "brier_score".
_LOW = {
    *("loss", "losses", "logloss", "error", "errors", "err", "mse", "rmse", "msle", "rmsle", "mae", "mape", "nll"),
    *("ce", "bce", "crossentropy", "perplexity", "ppl", "brier", "ece", "wer", "cer", "eer", "deviance", "divergence"),
}
_HIGH = {
    *("accuracy", "acc", "auc", "auroc", "auprc", "f1", "precision", "recall", "sensitivity", "specificity", "score"),
    *("dice", "iou", "miou", "r2", "bleu", "rouge", "psnr", "ssim"),
}
_NEGATED = ("neg", "negative")  # as a first word: scikit-learn's "neg_log_loss" is the better the higher
_WORD = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*")


class _Watched:
    """A metric of the evaluation or of training, and the best value that it has had: the highest, or the lowest.

    The source is one for the whole federation: the two are different quantities, and a round in which the evaluation
    fails has no value.
    """

    def __init__(
        self, owner: str, metric: str, lowest: bool | None, of: Of, source: Source | None, min_delta: float = 0.0
    ) -> None:
        expect(isinstance(metric, str) and metric != "", f"{owner}.metric", metric, 'a name, as in "accuracy"')
        expect(lowest is None or isinstance(lowest, bool), f"{owner}.lowest", lowest, "True, False, or None")
        expect(of in (None, "mean", "median"), f"{owner}.of", of, '"mean", "median", or None')
        known = source in (None, "evaluation", "training")
        expect(known, f"{owner}.source", source, '"evaluation", "training", or None')
        self.metric = metric
        self.best: float | None = None
        self.source: Source = source or "evaluation"
        self._is_chosen = source is not None
        self._owner = owner
        self._of = of
        self._known = is_low(metric)
        self._lowest = bool(self._known) if lowest is None else lowest
        self._sign = -1 if self._lowest else 1
        self._min_delta = min_delta
        self._is_warned = False

    def begin(self, details: Mapping[str, Any]) -> None:
        """Choose the source for the federation, unless the user has, and log it with the direction."""
        is_evaluated = self.metric.startswith(MEASURED) or bool(details["evaluate"])
        if not self._is_chosen:
            self.source = "evaluation" if is_evaluated else "training"
        best, usual = ("lowest", "highest") if self._lowest else ("highest", "lowest")
        log.info("%s: takes %r of the %s; the %s is the best", self._owner, self.metric, self.source, best)
        if self._known not in (None, self._lowest):
            text = "%s: the %s %r is to be the best, and by its name the %s is; leave out `lowest` unless you mean it"
            log.warning(text, self._owner, best, self.metric, usual)
        if self.source == "evaluation" and not is_evaluated:
            text = '%s: the server does not evaluate, so no round has a value: set its evaluate, or source="training"'
            log.warning(text, self._owner)

    def improves(self, report: RoundReport) -> bool | None:
        """Note the value of a round. Return whether it is the best one; None if there is no value."""
        if not report.clients:  # the attempt does not count, and the model is as before
            return None
        value = self._value(report)
        if value is None:
            return None
        if not math.isfinite(value):
            self._warn(
                f"round {report.number}: {self.metric!r} of the {self.source} is {value}; expected a finite number"
            )
            return None
        if self.best is not None and self._sign * (value - self.best) <= self._min_delta:
            return False
        self.best = value
        return True

    def _value(self, report: RoundReport) -> float | None:
        """Return the value of a round, None if it has none: fewer than half of the clients with an answer have it."""
        if self.source == "evaluation":
            means, clients = report.evaluation, report.client_evaluation.values()
        else:
            means, clients = report.metrics, report.client_metrics.values()
        if self.metric not in means:
            if means or clients:  # else the round was not evaluated, or all evaluations have failed, which the log has
                known = ", ".join(list(means)[:_NAMED]) or "none"
                self._warn(f"round {report.number} has no metric {self.metric!r} of the {self.source}; it has: {known}")
            return None
        if isinstance(means[self.metric], np.ndarray):
            what = f"{self.metric!r} of the {self.source} has the shape {means[self.metric].shape}"
            self._warn(f"round {report.number}: {what}; expected a number")
            return None
        there = [metrics[self.metric] for metrics in clients if self.metric in metrics]
        values = [value for value in there if isinstance(value, float) and math.isfinite(value)]
        sums = [each for each in there if isinstance(each, Sum) and np.all(np.isfinite(each.value))]
        count = max(len(values), len(sums))
        if not self.metric.startswith(MEASURED) and 2 * count < len(clients):
            has = f"{count} of {len(clients)} clients have a finite {self.metric!r} of the {self.source}"
            self._warn(f"round {report.number}: {has}; expected half of them at least")
            return None
        is_median = self._of == "median" or (self._of is None and len(values) >= _MEDIAN_OF)
        return statistics.median(values) if is_median and len(values) > len(sums) else means[self.metric]

    def _warn(self, text: str) -> None:
        """Log, once, why a round has no value."""
        if not self._is_warned:
            self._is_warned = True
            log.warning("%s (said once)", text)


def is_low(metric: str) -> bool | None:
    """Return whether lower values of a metric are better, as the words of its name say; None if none of them does."""
    words = [word.lower() for word in _WORD.findall(metric)]
    is_negated = words[0] in _NEGATED if words else False
    known = {*words, *(word.rstrip("0123456789") for word in words)}
    if not known.isdisjoint(_LOW):
        return not is_negated
    if "likelihood" in known:
        return is_negated
    return None if known.isdisjoint(_HIGH) else False


class SaveBest(Callback):
    """Writes the model of the best round so far to a file, and its round and value to a .json file next to it.

    path:   of the file, .npz (`np.load` reads it) or .safetensors. A server refuses a model that it cannot hold.
    metric: name of a metric; with fl.Measured, "server_accuracy" and the like.
    source: "evaluation" or "training": whose metric, for the whole federation. None: the evaluation if the server
            evaluates or fl.Measured has the name, else training. The log says which. Rounds without it have no value.
    lowest: whether the lowest value is the best. None: it is for a name with a word such as "loss", "error", "mse" or
            "perplexity"; for any other the highest is. A value that contradicts the name logs a warning.
    of:     "mean": the mean by number of examples; "median": the median of the clients, which fewer than half of them
            cannot move out of the range of the others' values; None: the median of five or more clients, the mean of
            fewer. What fl.Measured adds is neither.

    A server that resumes goes on with the value in the .json file; a federation that begins with round 1 begins anew.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        metric: str,
        *,
        lowest: bool | None = None,
        of: Of = None,
        source: Source | None = None,
    ) -> None:
        self._path = Path(path)
        files.check_name(self._path, "SaveBest.path")
        self._record = self._path.with_suffix(".json")
        self._watched = _Watched("SaveBest", metric, lowest, of, source)

    def federation_begins(self, details: Mapping[str, Any]) -> None:
        """Choose the source of the metric, and go on with the value of a server before this one."""
        self._watched.begin(details)
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
        watched = self._watched
        record = {"round": number, "metric": watched.metric, "source": watched.source, "value": watched.best}
        with replacing(self._record, 0o666) as file:
            file.write(json.dumps(record).encode() + b"\n")

    def _kept(self) -> float | None:
        """Return the best value of a server before this one, None if there is none."""
        try:
            found: Any = json.loads(read_regular(self._record))
        except (OSError, ValueError, RecursionError):
            return None
        watched = self._watched
        match found:
            case {"metric": watched.metric, "source": watched.source, "value": float(value)} if math.isfinite(value):
                return value
            case _:
                return None


class EarlyStopping(Callback):
    """Ends `Server.rounds` when a metric has not improved for some rounds. The federation is then over, as at its end.

    metric:    name of a metric.
    patience:  rounds without an improvement. A round without a value is none of them.
    min_delta: what counts as an improvement: more than this.
    lowest:    whether lower values are better; None: as the name says, as of SaveBest.
    of, source: the mean or the median of the clients, of the evaluation or of training, as of SaveBest.
    """

    def __init__(
        self,
        metric: str,
        patience: int = 10,
        *,
        min_delta: float = 0.0,
        lowest: bool | None = None,
        of: Of = None,
        source: Source | None = None,
    ) -> None:
        whole("EarlyStopping.patience", patience, 1)
        expect(is_number(min_delta, 0), "EarlyStopping.min_delta", min_delta, "a number, 0 or more")
        self._watched = _Watched("EarlyStopping", metric, lowest, of, source, min_delta)
        self._patience = patience
        self._without = 0  # rounds

    def federation_begins(self, details: Mapping[str, Any]) -> None:
        """Choose the source of the metric."""
        self._watched.begin(details)

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
