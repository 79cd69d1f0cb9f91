"""When a device takes part: each rule at its limit and beyond, hysteresis, and the table [fit]."""

from __future__ import annotations

import logging
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from edge.config import FILE
from edge.fitness import KEYS, Fitness, Gate, fitness
from edge.machine import Machine, Readings
from netq.errors import InvalidOption
from netq.toml_file import File
from tests.edge.machines import FakeMachine, laptop

LIMITS: dict[str, Any] = {
    "max_temperature": 75,
    "max_load": 0.5,
    "min_battery": 30,
    "mains": True,
    "hours": "22:00-06:00",
    "min_free_memory": 200,
    "idle": 300,
    "max_traffic": 5,
}


def minute(text: str) -> int:
    hour, _, rest = text.partition(":")
    return 60 * int(hour) + int(rest)


def test_device_without_rules_is_fit() -> None:
    assert Fitness().reason(Readings()) == ""
    assert Fitness().reason(Readings(temperature=150, load=99, battery=0, mains=False, minute=0)) == ""
    assert Fitness() == Fitness(**dict.fromkeys(KEYS))


def test_keys_are_the_options() -> None:
    assert tuple(option.name for option in fields(Fitness)) == KEYS == tuple(LIMITS)


@pytest.mark.parametrize(
    ("rule", "limit", "readings", "reason"),
    [
        ("max_temperature", 75, Readings(temperature=75.0), ""),
        ("max_temperature", 75, Readings(temperature=81.0), "temperature 81.0 °C; fit.max_temperature is 75"),
        ("max_temperature", 62.5, Readings(temperature=62.6), "temperature 62.6 °C; fit.max_temperature is 62.5"),
        ("max_temperature", 0, Readings(temperature=0.1), "temperature 0.1 °C; fit.max_temperature is 0"),
        ("max_load", 0.5, Readings(load=0.5), ""),
        ("max_load", 0.5, Readings(load=0.51), "load 0.51 per core; fit.max_load is 0.5"),
        ("min_battery", 30, Readings(battery=30), ""),
        ("min_battery", 30, Readings(battery=29), "battery 29 %; fit.min_battery is 30"),
        ("mains", True, Readings(mains=True), ""),
        ("mains", True, Readings(mains=False), "no supply is online; fit.mains is true"),
        ("mains", False, Readings(mains=False), ""),
        ("min_free_memory", 200, Readings(free_memory=200.0), ""),
        ("max_traffic", 5, Readings(traffic=5.0), ""),
        ("max_traffic", 5, Readings(traffic=5.1), "another round makes 5.1 MB in 60 minutes; fit.max_traffic is 5"),
        ("min_free_memory", 200, Readings(free_memory=199.0), "free memory 199 MB; fit.min_free_memory is 200"),
        ("idle", 300, Readings(idle=300.0), ""),
        ("idle", 300, Readings(idle=12.0), "idle for 12 s; fit.idle is 300"),
        ("hours", "22:00-06:00", Readings(minute=minute("14:05")), "local time 14:05; fit.hours is 22:00-06:00"),
    ],
)
def test_rule_at_its_limit_and_beyond(rule: str, limit: object, readings: Readings, reason: str) -> None:
    options: dict[str, Any] = {rule: limit}
    assert Fitness(**options).reason(readings) == reason
    assert Gate(Fitness(**options)).reason(readings) == reason


@pytest.mark.parametrize(
    ("hours", "inside", "outside"),
    [
        ("22:00-06:00", ["22:00", "23:59", "00:00", "05:59"], ["06:00", "12:00", "21:59"]),
        ("09:30-17:00", ["09:30", "16:59"], ["09:29", "17:00", "00:00"]),
        ("00:00-24:00", ["00:00", "12:00", "23:59"], []),
        ("18:00-24:00", ["18:00", "23:59"], ["00:00", "17:59"]),
        ("18:00-00:00", ["18:00", "23:59"], ["00:00", "17:59"]),
        ("23:59-00:01", ["23:59", "00:00"], ["00:01", "23:58"]),
        ([" 01:00 - 02:00 ", "22:00-23:00"], ["01:00", "22:59"], ["02:00", "23:00", "00:00"]),
    ],
)
def test_hours_include_their_start_and_not_their_end(
    hours: str | list[str], inside: list[str], outside: list[str]
) -> None:
    rules = Fitness(hours=hours)
    assert [time for time in inside + outside if not rules.reason(Readings(minute=minute(time)))] == inside


def test_hours_in_a_list_are_all_named() -> None:
    rules = Fitness(hours=["01:00-02:00", "22:00-23:00"])
    assert rules.reason(Readings(minute=0)) == "local time 00:00; fit.hours is 01:00-02:00, 22:00-23:00"
    assert rules == Fitness(hours=("01:00-02:00", "22:00-23:00"))
    assert hash(rules) == hash(Fitness(hours=("01:00-02:00", "22:00-23:00")))


@pytest.mark.parametrize(
    ("rule", "limit", "reading", "values", "fit"),
    [
        # held back at 76, until it has fallen to 72; then free up to 75
        ("max_temperature", 75, "temperature", [75, 76, 75, 72.1, 72, 75, 75.1, 74], "yes no no no yes yes no no"),
        ("max_load", 1.0, "load", [1.0, 1.1, 1.0, 0.91, 0.9, 1.0], "yes no no no yes yes"),
        ("min_battery", 30, "battery", [30, 29, 30, 31, 32, 30, 29], "yes no no no yes yes no"),
        ("min_battery", 99, "battery", [99, 98, 99, 100, 99], "yes no no yes yes"),
        ("min_free_memory", 200, "free_memory", [200, 199, 200], "yes no yes"),
        ("idle", 300, "idle", [300, 1, 299, 300], "yes no no yes"),
    ],
)
def test_gate_opens_beyond_the_limit(rule: str, limit: float, reading: str, values: list[float], fit: str) -> None:
    options: dict[str, Any] = {rule: limit}
    gate = Gate(Fitness(**options))
    reasons = [gate.reason(Readings(**{reading: value})) for value in values]  # type: ignore[arg-type]
    assert " ".join("no" if reason else "yes" for reason in reasons) == fit


def test_reason_names_where_a_device_is_fit_again() -> None:
    gate = Gate(Fitness(max_temperature=75, max_load=1.1))
    assert gate.reason(Readings(80.0, 0)) == "temperature 80.0 °C; fit.max_temperature is 75"
    assert gate.reason(Readings(74.0, 0)) == "temperature 74.0 °C; fit.max_temperature is 75, fit again at 72"
    assert gate.reason(Readings(20.0, 1.2)) == "load 1.20 per core; fit.max_load is 1.1"
    assert gate.reason(Readings(20.0, 1.0)) == "load 1.00 per core; fit.max_load is 1.1, fit again at 0.99"


def test_reason_of_a_rule_without_hysteresis_stays_the_same() -> None:
    gate = Gate(Fitness(idle=300))
    assert gate.reason(Readings(idle=12)) == "idle for 12 s; fit.idle is 300"
    assert gate.reason(Readings(idle=13)) == "idle for 13 s; fit.idle is 300"


def test_each_rule_has_its_own_hysteresis() -> None:
    gate = Gate(Fitness(max_temperature=75, min_battery=30))
    assert gate.reason(Readings(temperature=80, battery=20)).startswith("temperature")
    assert gate.reason(Readings(temperature=70, battery=31)).startswith("battery 31 %; fit.min_battery is 30, fit ag")
    assert gate.reason(Readings(temperature=74, battery=32)) == ""


def test_rules_have_no_memory_of_their_own() -> None:
    rules = Fitness(max_temperature=75)
    assert rules.reason(Readings(temperature=76)) != ""
    assert rules.reason(Readings(temperature=75)) == ""


def test_all_reasons_are_found() -> None:
    noon = minute("12:00")
    bad = Readings(99, load=9, battery=1, mains=False, minute=noon, free_memory=1, idle=1, traffic=6)
    rules = Fitness(**LIMITS)
    assert tuple(rules.reasons(bad)) == KEYS
    assert rules.reason(bad) == rules.reasons(bad)["max_temperature"]


def test_unknown_reading_does_not_hold_back_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(Fitness(**LIMITS))
    with caplog.at_level(logging.WARNING, "edge"):
        assert gate.reason(Readings()) == ""
        assert gate.reason(Readings()) == ""
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [f"fit.{key}" for key in KEYS]
    assert caplog.records[0].getMessage() == (
        "fit.max_temperature: its sensor cannot be read; while that is so, the device takes part without it"
    )


def test_no_warning_about_a_rule_that_is_not_set(caplog: pytest.LogCaptureFixture) -> None:
    Gate(Fitness(mains=False)).reason(Readings())
    assert caplog.records == []


def test_sensor_that_fails_frees_a_device_and_returns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fake, gate = FakeMachine(tmp_path), Gate(Fitness(max_temperature=75))
    for _ in range(2):
        fake.zone(0, 80_000)
        assert gate.reason(fake.machine.read()).startswith("temperature 80.0 °C")
        fake.remove("sys/class/thermal")
        assert gate.reason(fake.machine.read()) == ""
    fake.zone(0, 74_000)
    assert gate.reason(fake.machine.read()) == ""
    assert len(caplog.records) == 1


def test_gate_reads_a_machine(tmp_path: Path) -> None:
    fake, gate = laptop(tmp_path), Gate(Fitness(mains=True, min_battery=50, max_load=0.5))
    assert gate.reason(fake.machine.read()) == ""
    fake.supply("AC", online=0)
    assert gate.reason(fake.machine.read()) == "no supply is online; fit.mains is true"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("max_temperature", "no thermal zone"),
        ("max_load", "no /proc/loadavg"),
        ("min_battery", "no battery that tells its charge"),
        ("min_free_memory", "no /proc/meminfo"),
        ("idle", "no terminals in /dev, or no /proc/uptime"),
    ],
)
def test_rule_without_its_sensor_is_refused(tmp_path: Path, rule: str, said: str) -> None:
    rules = Fitness(**{rule: LIMITS[rule]})
    with pytest.raises(InvalidOption) as caught:
        rules.check(Machine(tmp_path))
    assert str(caught.value) == f"fit.{rule}: this machine has {said}; leave it out"


def test_mains_is_refused_if_only_the_battery_is_known(tmp_path: Path) -> None:
    fake = FakeMachine(tmp_path)
    Fitness(mains=True).check(fake.machine)  # without a battery, it is on mains
    fake.supply("BAT0", type="Battery", capacity=50)
    said = "fit.mains: this machine has a battery, and no supply that tells whether it is online; leave it out"
    with pytest.raises(InvalidOption, match=re.escape(said)):
        Fitness(mains=True).check(fake.machine)
    Fitness(mains=False).check(fake.machine)


def test_rules_that_need_no_sensor_are_accepted(tmp_path: Path) -> None:
    Fitness().check(Machine(tmp_path))
    Fitness(hours="22:00-06:00").check(Machine(tmp_path))


def test_machine_with_all_sensors_is_accepted(tmp_path: Path) -> None:
    fake = laptop(tmp_path)
    Fitness(**LIMITS).check(fake.machine)
    fake.break_file("proc/loadavg")  # it is there, and may be read again later
    Fitness(**LIMITS).check(fake.machine)


WRONG_HOURS = ["", "22:00", "22-06", "22:00-", "24:01-06:00", "22:60-06:00", "6:00-7:00", "22:00-22:00", "2²:00-06:00"]


@pytest.mark.parametrize(
    ("rule", "limit", "expected"),
    [
        ("max_temperature", "hot", "'hot'; expected °C from 0 to 150"),
        ("max_temperature", 75_000, "75000; expected °C from 0 to 150"),
        ("max_temperature", float("nan"), "nan; expected °C from 0 to 150"),
        ("max_temperature", True, "True; expected °C from 0 to 150"),
        ("max_load", 0, "0; expected load per core, from 0.01 to 1000"),
        ("min_battery", 101, "101; expected percent, from 1 to 100"),
        ("min_battery", 0, "0; expected percent, from 1 to 100"),
        ("mains", "yes", "'yes'; expected True or False"),
        ("mains", 1, "1; expected True or False"),
        ("min_free_memory", -1, "-1; expected MB, from 1 to 1000000000"),
        ("max_traffic", 0, "0; expected MB, from 0.001 to 1000000000"),
        ("idle", 5, "5; expected seconds, from 10 to 604800"),
        *((("hours", text, f"{text!r}; expected local time, as in")) for text in WRONG_HOURS),
        ("hours", [], "[]; expected local time, as in"),
        ("hours", [22], "[22]; expected local time, as in"),
        ("hours", 22, "22; expected local time, as in"),
        ("hours", ["22:00-06:00", "7"], "['22:00-06:00', '7']; expected local time, as in"),
    ],
)
def test_wrong_limits_are_refused(rule: str, limit: object, expected: str) -> None:
    options: dict[str, Any] = {rule: limit}
    with pytest.raises(InvalidOption) as caught:
        Fitness(**options)
    assert str(caught.value).startswith(f"Fitness.{rule}: {expected}")


def in_file(folder: Path, text: str) -> File:
    path = folder / "device.toml"
    path.write_text(text)
    return File(path, FILE)


def test_table_is_read(tmp_path: Path) -> None:
    lines = [f"{key} = {str(limit).lower() if limit is True else repr(limit)}" for key, limit in LIMITS.items()]
    assert fitness(in_file(tmp_path, "\n".join(["[fit]", *lines]))) == Fitness(**LIMITS)


def test_file_without_the_table_has_no_rules(tmp_path: Path) -> None:
    assert fitness(in_file(tmp_path, "")) == Fitness()


def test_wrong_value_is_named_with_file_and_key(tmp_path: Path) -> None:
    file = in_file(tmp_path, "[fit]\nhours = 22:00:00\n")
    with pytest.raises(InvalidOption) as caught:
        fitness(file)
    assert str(caught.value).startswith(f"{file.path}: fit.hours: datetime.time(22, 0); expected local time, as in")
