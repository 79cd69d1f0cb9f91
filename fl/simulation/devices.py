"""Profiles of simulated devices: how long they train, how fast their links are, and when they are there.

Made by users, for `fl.simulate(devices=…)`; used by fl/simulation/timed.py. Pure.
"""

from __future__ import annotations

import csv
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from netq.errors import InvalidOption
from netq.text import did_you_mean
from netq.validate import expect, is_number

Value = TypeVar("Value")
PerClient: TypeAlias = Value | Sequence[Value] | NDArray[Any] | Callable[[random.Random], Value]

_DAY = 24 * 3600.0  # seconds
_MBIT = 1e6 / 8  # bytes
_ROUNDING = 1e-6  # seconds by which a sum of times may miss the begin of its hours


@dataclass(frozen=True, kw_only=True)
class Device:
    """The profile of one device. The fields are those of Devices, for one client."""

    seconds: float = 1.0
    per_example: float = 0.0
    down: float = math.inf
    up: float = math.inf
    hours: tuple[float, float] | None = None
    failures: float = 0.0

    def duration(self, received: int, sent: int, examples: int) -> float:
        """Return the seconds of a task. received: bytes of the model; sent: of the update."""
        transfer = received / (self.down * _MBIT) + sent / (self.up * _MBIT)
        return transfer + self.seconds + self.per_example * examples

    def is_there(self, now: float) -> bool:
        """Return whether it is there at this time, in seconds since midnight of the first day."""
        return self.leaves(now) > now

    def leaves(self, now: float) -> float:
        """Return until when it stays, from now on: now, if it is not there; infinity, if it is always there."""
        if self.hours is None:
            return math.inf
        begin, end = (3600 * hour for hour in self.hours)
        into = (now - begin) % _DAY  # seconds since it was last due
        into = 0.0 if _DAY - into < _ROUNDING else into
        return now + max(0.0, (end - begin) % _DAY - into)

    def comes(self, now: float) -> float:
        """Return when it is there next: now, if it is there."""
        if self.hours is None or self.is_there(now):
            return now
        return now + (3600 * self.hours[0] - now) % _DAY


NAMES = tuple(each.name for each in fields(Device))


class Devices:
    """The devices of a simulation. Each value is one for all clients, a sequence with one for each, or a function.

    A function gets a random.Random, and returns the value of one client: `lambda draw: draw.lognormvariate(1, 0.5)`.

    seconds:     that a training takes. An evaluation takes no time.
    per_example: seconds more, for each example of the update.
    down, up:    speed of its link in Mbit/s, for the tensors of models and updates.
    hours:       of the day in which it is there, as in (22, 6); None: always. A task that is not done by then is lost.
    failures:    probability that a task is lost.
    seed:        of the functions and the failures.
    begin:       hour of the day at which the simulation begins.

    Raises InvalidOption.
    """

    def __init__(
        self,
        seconds: PerClient[float] = 1.0,
        *,
        per_example: PerClient[float] = 0.0,
        down: PerClient[float] = math.inf,
        up: PerClient[float] = math.inf,
        hours: PerClient[tuple[float, float] | None] = None,
        failures: PerClient[float] = 0.0,
        seed: int = 0,
        begin: float = 0.0,
    ) -> None:
        values = [_plain(each) for each in (seconds, per_example, down, up, hours, failures)]
        self._values: Mapping[str, Any] = dict(zip(NAMES, values, strict=True))
        expect(is_number(begin, 0, 24), "Devices.begin", begin, "an hour of the day, 0 to 24")
        self.begin = 3600 * begin
        self.seed = seed

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], *, seed: int = 0, begin: float = 0.0) -> Devices:
        """Return the devices of a table: a line for each client, with columns named as the arguments.

        Hours are a text, as in 22-6; an empty cell is the default. Raises InvalidOption, OSError.
        """
        try:
            with open(path, newline="", encoding="utf-8-sig") as file:  # spreadsheets put a mark before UTF-8
                rows = list(csv.DictReader(file))
        except (UnicodeDecodeError, csv.Error) as error:
            raise InvalidOption(f"{path}: {error}; expected a table as text (CSV, UTF-8)") from error
        if not rows:
            raise InvalidOption(f"{path}: no rows; expected a line with names, then one for each client")
        for name in rows[0]:
            if name is not None and name not in NAMES:
                raise InvalidOption(f"{path}: column {name!r}; {did_you_mean(str(name), NAMES)}")
        lines = [(f"{path}: line {number}", row) for number, row in enumerate(rows, 2)]
        for where, row in lines:
            if None in row:  # of csv: for cells beyond the names
                raise InvalidOption(f"{where}: more cells than the {len(row) - 1} names; expected one for each")
        return cls(**{name: [_cell(*line, name) for line in lines] for name in rows[0]}, seed=seed, begin=begin)

    def of(self, clients: int) -> list[Device]:
        """Return the devices of a number of clients."""
        for name, value in self._values.items():
            if _is_table(name, value) and len(value) != clients:
                raise InvalidOption(f"Devices.{name}: {len(value)} values; expected one for each of {clients} clients")
        return [self._device(client) for client in range(clients)]

    def _device(self, client: int) -> Device:
        found = {name: self._value(name, value, client) for name, value in self._values.items()}
        for name, (is_valid, expected) in _CHECKS.items():
            expect(is_valid(found[name]), f"Devices.{name} of client {client}", found[name], expected)
        return Device(**found)

    def _value(self, name: str, value: Any, client: int) -> Any:
        if callable(value):
            return _plain(value(random.Random(f"{self.seed} {name} {client}")))
        return value[client] if _is_table(name, value) else value


def _plain(value: Any) -> Any:
    """Return the list or the number that an array or a scalar of numpy has."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _is_table(name: str, value: Any) -> bool:
    """Return whether this is a sequence with a value for each client. A pair of hours is one value."""
    is_pair = name == "hours" and _are_hours(value)
    return isinstance(value, Sequence) and not isinstance(value, str) and not is_pair


def _are_hours(value: Any) -> bool:
    if value is None:
        return True
    is_pair = isinstance(value, tuple | list) and len(value) == 2 and all(is_number(each, 0, 24) for each in value)
    return is_pair and value[0] % 24 != value[1] % 24


def _is_time(value: Any) -> bool:
    return is_number(value, 0) and value < math.inf


def _is_speed(value: Any) -> bool:
    return is_number(value, 0) and value > 0


_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "seconds": (_is_time, "seconds, 0 or more"),
    "per_example": (_is_time, "seconds, 0 or more"),
    "down": (_is_speed, "Mbit/s, more than 0"),
    "up": (_is_speed, "Mbit/s, more than 0"),
    "hours": (_are_hours, "two different hours of the day, as in (22, 6)"),
    "failures": (lambda value: is_number(value, 0, 1), "a probability, 0 to 1"),
}


def _cell(where: str, row: Mapping[str, str | None], name: str) -> Any:
    text = (row[name] or "").strip()
    if not text:
        return getattr(Device, name)
    try:
        return tuple(map(float, text.split("-"))) if name == "hours" else float(text)
    except ValueError:
        raise InvalidOption(f"{where}: {name}: {text!r}; expected a number, or hours as 22-6") from None
