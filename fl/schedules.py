"""Values of a config that change from round to round, such as a learning rate.

A schedule is a function of the number of the round (1, 2, …). `fl.Server` and strategies accept one as a value of their
`config`; clients get its value. Called by fl/server/server.py before each task, and by fl/config/strategy.py, which
makes schedules of a file's tables. Pure.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from netq.errors import InvalidOption
from netq.text import did_you_mean
from netq.validate import expect, is_number, whole

Schedule = Callable[[int], Any]


def step(start: float, factor: float = 0.5, every: int = 10) -> Schedule:
    """Return a schedule that is multiplied by `factor` after every `every` rounds."""
    _check_number("step.start", start)
    _check_number("step.factor", factor)
    whole("step.every", every, 1)
    return lambda number: float(start * factor ** ((number - 1) // every))


def linear(start: float, end: float, rounds: int) -> Schedule:
    """Return a schedule on a straight line from `start` in round 1 to `end` in round `rounds`, and then `end`."""
    _check_number("linear.start", start)
    _check_number("linear.end", end)
    whole("linear.rounds", rounds, 1)
    return lambda number: float(start + (end - start) * _progress(number, rounds))


def cosine(start: float, end: float, rounds: int) -> Schedule:
    """Return a schedule on half a cosine from `start` in round 1 to `end` in round `rounds`, and then `end`.

    Source: Loshchilov & Hutter, 2017, "SGDR: Stochastic gradient descent with warm restarts", equation 5, no restarts.
    """
    _check_number("cosine.start", start)
    _check_number("cosine.end", end)
    whole("cosine.rounds", rounds, 1)
    return lambda number: float(end + (start - end) * (1 + math.cos(math.pi * _progress(number, rounds))) / 2)


SCHEDULES: dict[str, Callable[..., Schedule]] = {"step": step, "linear": linear, "cosine": cosine}


def resolved(config: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a config with the values that its schedules have in a round."""
    return {name: value(number) if callable(value) else value for name, value in config.items()}


def from_table(value: Mapping[str, Any]) -> Schedule:
    """Return the schedule that a table describes: {"schedule": "step", "start": 0.1, …}. Raises InvalidOption."""
    options = dict(value)
    name = options.pop("schedule", None)
    if not isinstance(name, str) or name not in SCHEDULES:
        raise InvalidOption(f"schedule: {name!r}; {did_you_mean(str(name), SCHEDULES)}")
    try:
        inspect.signature(SCHEDULES[name]).bind(**options)
    except TypeError as error:
        raise InvalidOption(f"schedule: {name}: {error}; see fl.schedules.{name}") from None
    return SCHEDULES[name](**options)


def _check_number(name: str, value: float) -> None:
    expect(is_number(value, -math.inf) and math.isfinite(value), name, value, "a finite number")


def _progress(number: int, rounds: int) -> float:
    """Return how far a round is between the first (0) and the last (1)."""
    return min(1.0, (number - 1) / max(1, rounds - 1))
