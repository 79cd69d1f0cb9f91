"""What server and clients say to each other. Validated frozen data that checks itself when it is made.

    server ──Task──► client        train, or evaluate, this model
    server ◄─Offer── client        the answer is ready, and larger than may be sent unasked
    server ─Permit─► client        there is room for it
    server ◄─Reply── client        Update (of train) | Report (of evaluate) | Failure

They are pickled with an allow-list that holds these classes, and tensors by persistent id
(fl/tensors/serialization.py). Each is rebuilt by its constructor, checks included, and in no other way; nothing else
can be named.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fl.compression.packed import Packed, Unpacked
from fl.tensors.serialization import serialization
from fl.tensors.spec import Model, nbytes, plain
from fl.tensors.validated import Validated, expect
from netq.text import printable
from netq.validate import is_whole

Purpose = Literal["train", "evaluate"]
PURPOSES = get_args(Purpose)

_LARGEST = 2**63 - 1  # of a number in a message


@dataclass(frozen=True)
class Update(Validated):
    """A trained model. `metrics` are averages over the `num_examples` it was trained on. Raises InvalidUpdate.

    `extra`: further arrays or tensors by name, which some strategies want (fl.ControlVariate).
    """

    model: dict[str, Any]  # to a strategy it is any Mapping: its tensors may be unpacked when they are asked for
    num_examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays and tensors."""
        return nbytes(self.model) + nbytes(self.extra)

    def __post_init__(self) -> None:
        for name in ("model", "extra"):
            value = getattr(self, name)
            expect(isinstance(value, (dict, Unpacked)), name, value, "a dict of arrays or tensors by name")
            if isinstance(value, dict):  # a state_dict is of a class that is not allowed
                object.__setattr__(self, name, plain(value))
        object.__setattr__(self, "num_examples", _checked_examples(self.num_examples))
        object.__setattr__(self, "metrics", _checked_metrics(self.metrics))


@dataclass(frozen=True)
class Report(Validated):
    """How a model does. `metrics` are averages over `num_examples`. Raises InvalidUpdate."""

    num_examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_examples", _checked_examples(self.num_examples))
        object.__setattr__(self, "metrics", _checked_metrics(self.metrics))


@dataclass(frozen=True)
class Failure(Validated):
    """A client could not do its task, and why."""

    reason: str

    def __post_init__(self) -> None:
        expect(isinstance(self.reason, str), "reason", self.reason, "a text")
        object.__setattr__(self, "reason", printable(self.reason))


@dataclass(frozen=True)
class Job(Validated):
    """Which task is meant. `run` is the server's own number: one that is started again has another."""

    run: int
    round: int
    purpose: Purpose

    def __post_init__(self) -> None:
        for name in ("run", "round"):
            _check_number(name, getattr(self, name))
        known = isinstance(self.purpose, str) and self.purpose in PURPOSES
        expect(known, "purpose", self.purpose, " or ".join(PURPOSES))


@dataclass(frozen=True)
class Task(Validated):
    """Something to do for a client. An answer of more than `unasked` bytes is to be offered first.

    `deltas`: the answer is to be the difference from this model (fl.tensors.model.difference). `compression`: how its
    tensors are to be packed, as fl.Compression says it; then it is a difference anyway.
    """

    job: Job
    model: Model
    config: Mapping[str, Any]
    unasked: int = _LARGEST
    deltas: bool = False
    compression: str = "none"

    def __post_init__(self) -> None:
        expect(isinstance(self.job, Job), "job", self.job, "a Job")
        _check_number("unasked", self.unasked)


@dataclass(frozen=True)
class Offer(Validated):
    """The answer to a task is ready, of so many bytes; it is sent when there is a Permit."""

    job: Job
    size: int

    def __post_init__(self) -> None:
        expect(isinstance(self.job, Job), "job", self.job, "a Job")
        _check_number("size", self.size)


@dataclass(frozen=True)
class Permit(Validated):
    """The answer to a task may be sent."""

    job: Job

    def __post_init__(self) -> None:
        expect(isinstance(self.job, Job), "job", self.job, "a Job")


@dataclass(frozen=True)
class Reply(Validated):
    """The answer to a task."""

    job: Job
    content: Update | Report | Failure

    def __post_init__(self) -> None:
        expect(isinstance(self.job, Job), "job", self.job, "a Job")
        expect(isinstance(self.content, (Update, Report, Failure)), "content", self.content, "an Update or Report")


_KINDS = (Job, Task, Offer, Permit, Reply, Update, Packed, Report, Failure)
MESSAGES = serialization(*(f"{kind.__module__}.{kind.__qualname__}" for kind in _KINDS))


_METRICS = 1000  # in one message
_NAME = 100  # characters of a metric's name
_MOST = 2**53  # examples: what a float counts


def _check_number(name: str, value: object) -> None:
    expect(is_whole(value, 0, _LARGEST), name, value, "a whole number below 2**63")


def _checked_examples(number: Any) -> int:
    whole = isinstance(number, numbers.Integral) and not isinstance(number, bool)
    expect(whole and 0 < number <= _MOST, "num_examples", number, "a whole number above 0, and 2**53 at most")
    return int(number)


def _checked_metrics(metrics: object) -> dict[str, float]:
    right = isinstance(metrics, Mapping) and len(metrics) <= _METRICS
    expect(right, "metrics", metrics, f"a mapping of at most {_METRICS} names to numbers")
    checked = {}
    for name, value in metrics.items():  # type: ignore[attr-defined]
        right = isinstance(name, str) and name.isprintable() and len(name) <= _NAME
        expect(right, "a name in metrics", name, f"a printable text of at most {_NAME} characters")
        try:
            checked[name] = float(value)
        except (TypeError, ValueError, OverflowError):
            expect(False, f"metrics[{name!r}]", value, "a number")
        expect(math.isfinite(checked[name]), f"metrics[{name!r}]", value, "a finite number")
    return checked
