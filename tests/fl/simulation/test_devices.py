"""Profiles of simulated devices: what each client gets, what a task takes, and what no device can have."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
from fl.simulation.devices import Device
from netq import InvalidOption

HOUR = 3600.0


def test_values_are_for_all_for_each_or_drawn() -> None:
    devices = fl.Devices([1, 2, 3], up=8.0, failures=lambda draw: draw.random() / 2, seed=1).of(3)
    assert [each.seconds for each in devices] == [1, 2, 3]
    assert {each.up for each in devices} == {8.0}
    assert len({each.failures for each in devices}) == 3


def test_what_is_drawn_depends_on_the_seed_and_the_client_only() -> None:
    def drawn(seed: int, clients: int) -> list[float]:
        return [each.seconds for each in fl.Devices(lambda draw: draw.lognormvariate(0, 1), seed=seed).of(clients)]

    assert drawn(1, 5) == drawn(1, 9)[:5] != drawn(2, 5)


def test_a_tasks_time_is_that_of_its_link_and_its_examples() -> None:
    device = Device(seconds=2, per_example=0.1, down=8, up=4)  # a megabyte a second, and half of it
    assert device.duration(3_000_000, 1_000_000, 50) == 3 + 2 + 2 + 5


@pytest.mark.parametrize(
    ("hours", "hour", "leaves", "comes"),
    [
        ((8, 12), 7, 7, 8),
        ((8, 12), 8, 12, 8),
        ((8, 12), 11.5, 12, 11.5),
        ((8, 12), 12, 12, 32),
        ((22, 6), 23, 30, 23),
        ((22, 6), 5, 6, 5),
        ((22, 6), 6, 6, 22),
        ((0, 24.0 - 1), 23.5, 23.5, 24),
        (None, 5, math.inf, 5),
    ],
)
def test_hours_of_the_day(hours: Any, hour: float, leaves: float, comes: float) -> None:
    device = Device(hours=hours)
    assert (device.leaves(HOUR * hour), device.comes(HOUR * hour)) == (HOUR * leaves, HOUR * comes)
    assert device.is_there(HOUR * hour) is (leaves > hour)
    assert device.comes(HOUR * (hour + 48)) == HOUR * (comes + 48)


def test_values_may_be_numpys() -> None:
    devices = fl.Devices(np.array([1.0, 2.0]), up=np.float64(8), down=lambda draw: np.float64(draw.random())).of(2)
    assert [each.seconds for each in devices] == [1, 2]
    assert devices[0].up == 8


def test_a_pair_of_hours_is_for_all_and_pairs_are_for_each() -> None:
    assert [each.hours for each in fl.Devices(hours=(22, 6)).of(2)] == [(22, 6)] * 2
    assert [each.hours for each in fl.Devices(hours=[(22, 6), None]).of(2)] == [(22, 6), None]


def test_a_table_of_devices(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text("seconds,up,hours\n1.5,8,22-6\n3,,\n", encoding="utf-8-sig")
    assert fl.Devices.from_csv(path).of(2) == [Device(seconds=1.5, up=8, hours=(22, 6)), Device(seconds=3)]
    with pytest.raises(InvalidOption, match=r"^Devices\.seconds: 2 values; expected one for each of 5 clients"):
        fl.Devices.from_csv(path).of(5)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("second\n1\n", r"devices.csv: column 'second'; did you mean seconds\?"),
        ("seconds\nfast\n", r"devices.csv: line 2: seconds: 'fast'; expected a number"),
        ("seconds,hours\n1,night\n", r"devices.csv: line 2: hours: 'night'; expected a number, or hours as 22-6"),
        ("seconds\n", r"devices.csv: no rows"),
        ("", r"devices.csv: no rows"),
        ("seconds,up\n1,2\n1,2,3\n", r"devices.csv: line 3: more cells than the 2 names"),
        ("seconds\n\udcff\n", r"devices.csv: .*expected a table as text"),
    ],
)
def test_what_is_no_table(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidOption, match=why):
        fl.Devices.from_csv(path)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"seconds": [1, -1]}, r"^Devices\.seconds of client 1: -1; expected seconds, 0 or more"),
        ({"seconds": math.inf}, r"^Devices\.seconds of client 0: inf"),
        ({"per_example": "1"}, r"^Devices\.per_example of client 0: '1'"),
        ({"up": 0}, r"^Devices\.up of client 0: 0; expected Mbit/s, more than 0"),
        ({"down": lambda draw: -draw.random()}, r"^Devices\.down of client 0: -0"),
        ({"hours": (5, 5)}, r"^Devices\.hours of client 0: 5"),
        ({"hours": (0, 24)}, r"^Devices\.hours: 2 values|^Devices\.hours of client 0"),
        ({"failures": 1.5}, r"^Devices\.failures of client 0: 1.5; expected a probability, 0 to 1"),
    ],
)
def test_a_profile_that_no_client_can_have(values: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        fl.Devices(**values).of(2)


def test_an_hour_that_is_none() -> None:
    with pytest.raises(InvalidOption, match=r"Devices\.begin: 25; expected an hour of the day, 0 to 24"):
        fl.Devices(begin=25)


def test_a_device_that_comes_is_there() -> None:
    """At hours and times that no float holds."""
    draw = random.Random(1)
    for _ in range(2000):
        device, now = Device(hours=(draw.uniform(0, 24), draw.uniform(0, 24))), draw.uniform(0, 30 * 86400)
        assert device.is_there(device.comes(now))
