"""When a device takes part: the rules of the table [fit], and the gate that applies them.

Called by the loop of the agent, before it offers itself for a task, with what edge/machine.py has read. Reads no file
and no clock. `Fitness` is the rules, which never change; `Gate` is their state, and has one owner.

rule             the device is unfit while             it is fit again at
max_temperature  the hottest thermal zone is above it  3 °C below
max_load         the load per core is above it         10 % below
min_battery      the battery is below it               2 points above, or 100
mains            the device runs on its battery
hours            the local time is in none of them
min_free_memory  the free memory is below it           the limit
idle             the last input is more recent         the limit
max_traffic      another round would go above it       the limit
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from edge.machine import Machine, Readings
from netq.errors import NotNow
from netq.validate import expect, flag, is_number, seconds

if TYPE_CHECKING:
    from netq.toml_file import File

log = logging.getLogger("edge")

_DAY = 24 * 60  # minutes
_WEEK = 7 * 24 * 3600.0  # seconds


@dataclass(frozen=True)
class Fitness:
    """The rules of a device. None: no such rule.

    max_temperature: °C of the hottest thermal zone.
    max_load:        load average of the last minute, per core.
    min_battery:     percent of charge, of the fullest battery.
    mains:           True: only while a supply is online. A machine without a battery is on mains.
    hours:           local time, as in "22:00-06:00", or a list of such texts. The end does not belong to it.
    min_free_memory: MB that programs can have without swapping.
    idle:            seconds since the last input on a terminal.
    max_traffic:     MB of tasks and replies in 60 minutes.
    """

    max_temperature: float | None = None
    max_load: float | None = None
    min_battery: float | None = None
    mains: bool | None = None
    hours: str | Sequence[str] | None = None
    min_free_memory: float | None = None
    idle: float | None = None
    max_traffic: float | None = None

    def __post_init__(self) -> None:
        self._expect_number("max_temperature", 0, 150, "°C")
        self._expect_number("max_load", 0.01, 1000, "load per core,")
        self._expect_number("min_battery", 1, 100, "percent,")
        self._expect_number("min_free_memory", 1, 1e9, "MB,")
        self._expect_number("max_traffic", 0.001, 1e9, "MB,")
        if self.mains is not None:
            flag("Fitness.mains", self.mains)
        if self.idle is not None:
            seconds("Fitness.idle", self.idle, 10.0, _WEEK)  # the kernel's times of terminals are exact to 8 s
        if self.hours is not None:
            hours = (self.hours,) if isinstance(self.hours, str) else self.hours
            expect(_is_hours(hours), "Fitness.hours", self.hours, 'local time, as in "22:00-06:00", or a list of such')
            object.__setattr__(self, "hours", tuple(hours))

    def _expect_number(self, rule: str, least: float, most: float, unit: str) -> None:
        limit = getattr(self, rule)
        right = limit is None or is_number(limit, least, most)
        expect(right, f"Fitness.{rule}", limit, f"{unit} from {least:g} to {most:.10g}")

    def check(self, machine: Machine) -> None:
        """Raise NotNow if this machine lacks the sensor of a rule: its driver may come. Call it at the start."""
        missing = machine.missing()
        for rule, reading in self._rules():
            if reading in missing:
                raise NotNow(f"fit.{rule}: this machine has {missing[reading]}; leave it out")

    def reason(self, readings: Readings) -> str:
        """Return why the device is not fit, in one sentence; "" if it is. It has no hysteresis: see Gate."""
        return next(iter(self.reasons(readings).values()), "")

    def reasons(self, readings: Readings, held: Collection[str] = ()) -> dict[str, str]:
        """Return the rules that hold the device back, and why. A rule whose reading is None does not.

        held: rules that hold the device back already. They do until their value is at the limit for being fit again.
        """
        unknown = self.unknown(readings)
        found = {rule: self._judge(rule, readings, held) for rule, _ in self._rules() if rule not in unknown}
        return {rule: reason for rule, reason in found.items() if reason}

    def unknown(self, readings: Readings) -> list[str]:
        """Return the rules whose readings are None."""
        return [rule for rule, reading in self._rules() if getattr(readings, reading) is None]

    def _rules(self) -> Iterator[tuple[str, str]]:
        """Yield the rules of this device, and the names of their readings. `mains = false` is no rule."""
        for rule, reading in _READINGS.items():
            limit = getattr(self, rule)
            if limit is not None and limit is not False:
                yield rule, reading

    def _judge(self, rule: str, readings: Readings, held: Collection[str]) -> str:
        value, limit = getattr(readings, _READINGS[rule]), getattr(self, rule)
        if rule == "mains":
            return "" if value else "no supply is online; fit.mains is true"
        if rule == "hours":
            return _judge_hours(value, limit)
        return _LIMITS[rule].judge(f"fit.{rule}", value, limit, rule in held)


class Gate:
    """Applies the rules of one device, with hysteresis: a value that varies about its limit causes no flapping."""

    def __init__(self, fitness: Fitness) -> None:
        self._fitness = fitness
        self._held: set[str] = set()  # rules that hold the device back
        self._warned: set[str] = set()  # rules whose reading was unknown at some time

    def reason(self, readings: Readings) -> str:
        """Return why the device is not fit, in one sentence; "" if it is. Remembers it for the next call.

        A rule whose reading is None does not hold the device back. The log has one warning for each such rule.
        """
        for rule in self._fitness.unknown(readings):
            self._warn(rule)
        reasons = self._fitness.reasons(readings, self._held)
        self._held = set(reasons)
        return next(iter(reasons.values()), "")

    def _warn(self, rule: str) -> None:
        if rule not in self._warned:
            self._warned.add(rule)
            log.warning("fit.%s: its sensor cannot be read; while that is so, the device takes part without it", rule)


def fitness(file: File) -> Fitness:
    """Return the rules of the table [fit]; without the table, none. The caller has checked the names of the keys.

    Raises InvalidOption, which names the file and the key.
    """
    return file.options("fit", Fitness, file.table("fit"))


class _Limit(NamedTuple):
    """Compares a value with a limit, which is the most or the least that is right."""

    is_most: bool
    shown: str  # format of the value
    release: Callable[[float], float]  # of a limit: where a device that was held back is fit again

    def judge(self, rule: str, value: float, limit: float, held: bool) -> str:
        release = self.release(limit)
        if not self._is_beyond(value, release if held else limit):
            return ""
        again = f", fit again at {release:.10g}" if held and release != limit else ""
        return f"{self.shown.format(value)}; {rule} is {limit:.10g}{again}"

    def _is_beyond(self, value: float, limit: float) -> bool:
        return value > limit if self.is_most else value < limit


_LIMITS = {
    "max_temperature": _Limit(True, "temperature {:.1f} °C", lambda limit: limit - 3),
    "max_load": _Limit(True, "load {:.2f} per core", lambda limit: 0.9 * limit),
    "min_battery": _Limit(False, "battery {:.0f} %", lambda limit: min(limit + 2, 100)),
    "min_free_memory": _Limit(False, "free memory {:.0f} MB", lambda limit: limit),
    "idle": _Limit(False, "idle for {:.0f} s", lambda limit: limit),
    "max_traffic": _Limit(True, "another round makes {:.6g} MB in 60 minutes", lambda limit: limit),
}
_READINGS = {  # the reading of each rule, in the order in which the first reason is chosen
    "max_temperature": "temperature",
    "max_load": "load",
    "min_battery": "battery",
    "mains": "mains",
    "hours": "minute",
    "min_free_memory": "free_memory",
    "idle": "idle",
    "max_traffic": "traffic",
}
KEYS = tuple(_READINGS)  # of the table [fit]


def _judge_hours(minute: int, hours: Sequence[str]) -> str:
    if any(_contains(_span(text), minute) for text in hours):
        return ""
    return f"local time {minute // 60:02}:{minute % 60:02}; fit.hours is {', '.join(hours)}"


def _contains(span: tuple[int, int] | None, minute: int) -> bool:
    if span is None:
        return False
    start, end = span
    return start <= minute < end if start < end else minute >= start or minute < end


def _is_hours(hours: object) -> bool:
    return isinstance(hours, (list, tuple)) and len(hours) > 0 and all(_span(text) is not None for text in hours)


def _span(text: object) -> tuple[int, int] | None:
    """Return the minutes of the day of "22:00-06:00"; None for another text, or if the two are equal."""
    start, _, end = text.partition("-") if isinstance(text, str) else ("", "", "")
    first, last = _minute(start), _minute(end)
    return None if first is None or last is None or first == last else (first, last)


def _minute(text: str) -> int | None:
    """Return the minute of the day of "22:00"; that of "24:00" is the end of the day."""
    hour, _, minute = text.strip().partition(":")
    if not (len(hour) == len(minute) == 2 and f"{hour}{minute}".isascii() and f"{hour}{minute}".isdigit()):
        return None
    total = 60 * int(hour) + int(minute)
    return total if int(minute) < 60 and total <= _DAY else None
