"""The sensors of a machine: what is read, what is missing, and what cannot be read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.machine import Machine, Readings
from tests.edge.machines import NOW, FakeMachine, laptop


@pytest.fixture
def fake(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.fixture
def india(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "XYZ-5:30")  # 5:30 hours east, and no daylight saving time
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_all_sensors_are_read(tmp_path: Path, india: None) -> None:
    readings = laptop(tmp_path).machine.read()
    assert readings == Readings(
        temperature=47.5, load=0.2, battery=64, mains=True, minute=13 * 60 + 30, free_memory=2048.0, idle=600.0
    )


def test_machine_without_files_has_no_sensor(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.memory() is None
    assert set(machine.missing()) == {"temperature", "load", "battery", "free_memory", "idle"}
    readings = machine.read()
    assert readings == Readings(mains=True, minute=readings.minute)


def test_machine_with_all_sensors_misses_none(tmp_path: Path) -> None:
    assert laptop(tmp_path).machine.missing() == {}


def test_this_machine_can_be_read() -> None:
    readings = Machine().read()
    assert readings.load is not None
    assert readings.load >= 0
    assert readings.free_memory is not None
    assert readings.free_memory > 1
    assert readings.minute in range(24 * 60)


@pytest.mark.parametrize(
    ("own", "limits", "memory"),
    [
        ("", {}, 8_192_000_000),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": 2**28, "memory.max": 2**29}, 2**28),
        ("0::/a/b\n", {"a/b/memory.max": 2**40}, 8_192_000_000),
        ("0::/\n", {"memory.max": 2**27}, 2**27),
        ("4:memory:/a\n3:cpu:/\n0::/\n", {"memory/a/memory.limit_in_bytes": 2**27}, 2**27),
        ("4:memory:/host/a\n", {"memory/memory.limit_in_bytes": 2**27}, 2**27),  # the root of a container
    ],
)
def test_memory_is_the_least_limit(tmp_path: Path, own: str, limits: dict[str, object], memory: int) -> None:
    fake = laptop(tmp_path)
    fake.write("proc/self/cgroup", own)
    for name, limit in limits.items():
        fake.write(f"sys/fs/cgroup/{name}", limit)
    assert fake.machine.memory() == memory


BROKEN = {
    "temperature": ["sys/class/thermal/thermal_zone0/temp", "sys/class/thermal/thermal_zone1/temp"],
    "load": ["proc/loadavg"],
    "battery": ["sys/devices/BAT0/capacity"],
    "mains": ["sys/devices/AC/online"],
    "free_memory": ["proc/meminfo"],
    "idle": ["proc/uptime"],
}


@pytest.mark.parametrize("sensor", BROKEN)
def test_sensor_that_cannot_be_read_is_unknown_but_there(tmp_path: Path, sensor: str) -> None:
    fake = laptop(tmp_path)
    for path in BROKEN[sensor]:
        fake.break_file(path)
    assert getattr(fake.machine.read(), sensor) is None
    assert fake.machine.missing() == {}


@pytest.mark.parametrize("sensor", BROKEN)
@pytest.mark.parametrize("text", ["", "hot", "nan", "inf", "\x00"])
def test_value_that_is_no_number_is_unknown(tmp_path: Path, sensor: str, text: str) -> None:
    fake = laptop(tmp_path)
    for path in BROKEN[sensor]:
        fake.write(path, f"MemAvailable: {text}" if sensor == "free_memory" else text)
    assert getattr(fake.machine.read(), sensor) is None


def test_bytes_that_are_no_text_are_unknown(fake: FakeMachine) -> None:
    fake.write("proc/loadavg", "").write_bytes(b"\xff\xfe")
    assert fake.machine.read().load is None


def test_zone_that_cannot_be_read_is_left_out(fake: FakeMachine) -> None:
    fake.zone(0, 90_000)
    fake.zone(1, 40_000)
    fake.break_file("sys/class/thermal/thermal_zone0/temp")
    assert fake.machine.read().temperature == 40.0


def test_files_in_place_of_folders_are_no_sensors(fake: FakeMachine) -> None:
    for folder in ("sys/class/thermal", "sys/class/power_supply", "dev", "proc"):
        fake.write(folder, "")
    assert set(fake.machine.missing()) == {"temperature", "load", "battery", "free_memory", "idle"}
    assert fake.machine.read().mains is True


def test_temperature_below_zero_is_read(fake: FakeMachine) -> None:
    fake.zone(0, -12_500)
    assert fake.machine.read().temperature == -12.5


@pytest.mark.parametrize(
    ("supplies", "battery", "mains"),
    [
        ({}, None, True),
        ({"AC": {"type": "Mains", "online": 0}}, None, True),  # what else does it run on
        ({"BAT0": {"type": "Battery", "capacity": 7}}, 7, None),
        ({"BAT0": {"type": "Battery", "capacity": 7}, "BAT1": {"type": "Battery", "capacity": 80}}, 80, None),
        ({"BAT0": {"type": "Battery", "capacity": 7}, "AC": {"type": "Mains", "online": 0}}, 7, False),
        ({"BAT0": {"type": "Battery", "capacity": 7}, "AC": {"type": "Mains", "online": 1}}, 7, True),
        ({"BAT0": {"type": "Battery", "capacity": 7}, "u": {"type": "USB", "online": 1}}, 7, True),
        ({"BAT0": {"type": "Battery", "capacity": 7}, "u": {"type": "USB_PD", "online": 2}}, 7, True),
        ({"BAT0": {"type": "Battery"}, "AC": {"type": "Mains", "online": 0}}, None, False),
        ({"BAT0": {"type": "Battery", "capacity": 7}, "u": {"type": "USB"}}, 7, None),
        ({"mouse": {"type": "Battery", "capacity": 3, "scope": "Device"}}, None, True),
        (
            {
                "BAT0": {"type": "Battery", "capacity": 50, "scope": "System"},
                "mouse": {"type": "Battery", "capacity": 90, "scope": "Device"},
                "AC": {"type": "Mains", "online": 0},
                "pad": {"type": "USB", "online": 1, "scope": "Device"},
            },
            50,
            False,
        ),
    ],
)
def test_power_supplies(
    fake: FakeMachine, supplies: dict[str, dict[str, object]], battery: float | None, mains: bool | None
) -> None:
    for name, attributes in supplies.items():
        fake.supply(name, **attributes)
    readings = fake.machine.read()
    assert readings.battery == battery
    assert readings.mains is mains
    assert ("battery" in fake.machine.missing()) == (battery is None)
    assert ("mains" in fake.machine.missing()) == (mains is None)


def test_charger_that_cannot_be_read_may_be_online(fake: FakeMachine) -> None:
    fake.supply("BAT0", type="Battery", capacity=7)
    fake.supply("AC", type="Mains", online=1)
    fake.supply("usb", type="USB", online=0)
    assert fake.machine.read().mains is True
    fake.break_file("sys/devices/AC/online")
    assert fake.machine.read().mains is None
    fake.supply("usb", type="USB", online=1)
    assert fake.machine.read().mains is True


@pytest.mark.parametrize(
    ("terminals", "idle"),
    [
        ({}, 5000.25),
        ({"dev/tty1": NOW - 70}, 70),
        ({"dev/tty1": NOW - 70, "dev/tty2": NOW - 30, "dev/pts/0": NOW - 50}, 30),
        ({"dev/pts/12": NOW}, 0),
        ({"dev/tty1": NOW - 70, "dev/tty2": NOW + 9}, 70),  # the clock was set back
        ({"dev/tty1": 60.0}, 5000.25),  # the clock was set forward
        ({"dev/ttyS0": NOW - 40, "dev/ttyUSB0": NOW - 1, "dev/ttyAMA0": NOW - 2}, 40),  # S0 is the console
        ({"dev/tty1": NOW - 70, "dev/tty": NOW, "dev/ptmx": NOW, "dev/pts/ptmx": NOW}, 70),
    ],
)
def test_idle_since_the_last_input_on_a_terminal(fake: FakeMachine, terminals: dict[str, float], idle: float) -> None:
    fake.write("proc/uptime", "5000.25 9000.00")
    fake.write("sys/class/tty/console/active", "tty0 ttyS0")
    for path, last_input in terminals.items():
        fake.terminal(path, last_input)
    assert fake.machine.read().idle == pytest.approx(idle)


@pytest.mark.parametrize(
    ("paths", "is_there"),
    [
        (["proc/uptime", "dev/pts/ptmx"], True),  # a board without a screen, and no login yet
        (["proc/uptime", "dev/tty1"], True),
        (["proc/uptime", "dev/ttyS0"], True),
        (["proc/uptime", "dev/ttyAMA0"], False),
        (["dev/tty1"], False),
    ],
)
def test_idle_needs_terminals(fake: FakeMachine, paths: list[str], is_there: bool) -> None:
    fake.write("sys/class/tty/console/active", "ttyS0")
    for path in paths:
        fake.write(path, "1.0")
    assert ("idle" not in fake.machine.missing()) == is_there


def test_load_is_that_of_one_core(tmp_path: Path) -> None:
    fake = FakeMachine(tmp_path)
    fake.write("proc/loadavg", "6.00 1.00 1.00 1/200 999")
    assert fake.machine.read().load == 1.5
    assert Machine(tmp_path, cores=1).read().load == 6.0


def test_memory_of_an_old_kernel_is_unknown(fake: FakeMachine) -> None:
    fake.write("proc/meminfo", "MemTotal: 100 kB\nMemFree: 90 kB")
    assert fake.machine.read().free_memory is None
