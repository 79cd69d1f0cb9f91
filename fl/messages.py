"""What server and clients say to each other. Plain frozen data that checks itself when it is made.

    server ──Task──► client        train, or evaluate, this model
    server ◄─Reply── client        Update (of train) | Report (of evaluate) | Failure

They are pickled with an allow-list that holds these five classes, and tensors by persistent id (fl/tensors.py);
so each is rebuilt by its constructor, checks included, and nothing else can be named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from fl.aggregate import InvalidUpdate, Model
from fl.tensors import serialization

Purpose = Literal["train", "evaluate"]


class _Plain:
    """Pickled as a call of the class with its fields."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, each.name) for each in fields(self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Update(_Plain):
    """A trained model. `metrics` are averages over the `num_examples` it was trained on."""

    model: Model
    num_examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(isinstance(self.model, dict), "model", self.model, "a dict of arrays or tensors by name")
        _check_examples(self.num_examples)
        object.__setattr__(self, "metrics", _checked_metrics(self.metrics))


@dataclass(frozen=True)
class Report(_Plain):
    """How a model does. `metrics` are averages over `num_examples`."""

    num_examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_examples(self.num_examples)
        object.__setattr__(self, "metrics", _checked_metrics(self.metrics))


@dataclass(frozen=True)
class Failure(_Plain):
    """A client could not do its task, and why."""

    reason: str

    def __post_init__(self) -> None:
        _check(isinstance(self.reason, str), "reason", self.reason, "a text")


@dataclass(frozen=True)
class Task(_Plain):
    """Something to do for a client. `config` holds "round" and what the strategy adds."""

    round: int
    purpose: Purpose
    model: Model
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Reply(_Plain):
    """The answer to a task, by its round and purpose."""

    round: int
    purpose: Purpose
    content: Update | Report | Failure

    def __post_init__(self) -> None:
        _check(isinstance(self.round, int), "round", self.round, "a whole number")
        _check(isinstance(self.content, (Update, Report, Failure)), "content", self.content, "an Update or Report")


MESSAGES = serialization(*(f"{kind.__module__}.{kind.__qualname__}" for kind in (Task, Reply, Update, Report, Failure)))


def _check(right: bool, name: str, value: object, expected: str) -> None:
    if not right:
        raise InvalidUpdate(f"{name}: {type(value).__name__} {str(value)[:80]!r}; expected {expected}")


def _check_examples(number: object) -> None:
    whole = isinstance(number, int) and not isinstance(number, bool)
    _check(whole and number > 0, "num_examples", number, "a whole number above 0")  # type: ignore[operator]


def _checked_metrics(metrics: object) -> dict[str, float]:
    _check(isinstance(metrics, Mapping), "metrics", metrics, "a mapping of names to numbers")
    checked = {}
    for name, value in metrics.items():  # type: ignore[attr-defined]
        try:
            checked[str(name)] = float(value)
        except (TypeError, ValueError):
            _check(False, f"metrics[{name!r}]", value, "a number")
        _check(math.isfinite(checked[str(name)]), f"metrics[{name!r}]", value, "a finite number")
    return checked
