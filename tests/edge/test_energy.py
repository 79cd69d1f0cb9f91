"""The energy counters of the processors: sums, wrap-around, and what makes the energy unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.energy import Meter
from tests.edge.machines import FakeMachine

RANGE = 262_143_328_850  # microjoules; of a real processor
ZERO, ONE = "intel-rapl:0", "intel-rapl:1"


class Counters:
    """Counters of a fake machine."""

    def __init__(self, root: Path) -> None:
        self.fake = FakeMachine(root)
        self.meter = Meter(root)

    def set(self, zone: str, microjoules: object, name: str = "package") -> None:
        self.fake.write(f"sys/class/powercap/{zone}/energy_uj", microjoules)
        self.fake.write(f"sys/class/powercap/{zone}/name", name)
        self.fake.write(f"sys/class/powercap/{zone}/max_energy_range_uj", RANGE)


@pytest.fixture
def counters(tmp_path: Path) -> Counters:
    return Counters(tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "joules"),
    [
        ({ZERO: 0}, {ZERO: 0}, 0.0),
        ({ZERO: 1_000_000}, {ZERO: 3_500_000}, 2.5),
        ({ZERO: 1_000_000, ONE: 7_000_000}, {ZERO: 2_000_000, ONE: 7_250_000}, 1.25),
        ({ZERO: RANGE - 1_000_000}, {ZERO: 500_000}, 1.5),
        ({ZERO: RANGE}, {ZERO: 0}, 0.0),
        ({ZERO: RANGE - 1_000_000, ONE: 0}, {ZERO: 500_000, ONE: 1_000_000}, 2.5),
    ],
)
def test_energy_between_two_readings(
    counters: Counters, before: dict[str, int], after: dict[str, int], joules: float
) -> None:
    for zone, value in before.items():
        counters.set(zone, value)
    read = counters.meter.read()
    assert read == before
    for zone, value in after.items():
        counters.set(zone, value)
    assert counters.meter.joules_since(read) == pytest.approx(joules)


def test_parts_of_a_processor_are_not_counted_twice(counters: Counters) -> None:
    counters.set(ZERO, 0)
    counters.set("intel-rapl:0:0", 0, "core")
    counters.set(ONE, 0, "psys")
    counters.set("intel-rapl-mmio:0", 0)
    counters.set("dtpm", 0)
    assert counters.meter.read() == {ZERO: 0}


def test_machine_without_counters_has_no_energy(tmp_path: Path) -> None:
    meter = Meter(tmp_path)
    assert meter.read() == {}
    assert meter.joules_since({}) is None


def test_counter_that_cannot_be_read_makes_energy_unknown(counters: Counters) -> None:
    counters.set(ZERO, 0)
    counters.set(ONE, 0)
    before = counters.meter.read()
    counters.fake.break_file(f"sys/class/powercap/{ONE}/energy_uj")
    assert counters.meter.read() == {}
    assert counters.meter.joules_since(before) is None


def test_energy_is_unknown_if_processors_come_or_go(counters: Counters) -> None:
    counters.set(ZERO, 0)
    before = counters.meter.read()
    counters.set(ONE, 0)
    assert counters.meter.joules_since(before) is None
    counters.fake.remove(f"sys/class/powercap/{ZERO}")
    assert counters.meter.joules_since(before) is None


@pytest.mark.parametrize("most", ["", "many", RANGE // 2])
def test_wrap_around_without_a_range_is_unknown(counters: Counters, most: object) -> None:
    counters.set(ZERO, RANGE - 5)
    before = counters.meter.read()
    counters.set(ZERO, 5)
    counters.fake.write(f"sys/class/powercap/{ZERO}/max_energy_range_uj", most)
    assert counters.meter.joules_since(before) is None


def test_counter_that_is_no_number_is_unknown(counters: Counters) -> None:
    counters.set(ZERO, "much")
    assert counters.meter.read() == {}


def test_energy_of_this_machine_is_known_or_not() -> None:
    meter = Meter()
    joules = meter.joules_since(meter.read())
    assert joules is None or joules >= 0
