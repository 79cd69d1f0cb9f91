"""Machines made of files, for the tests of what reads /sys, /proc and /dev."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from edge.machine import Machine

NOW = 1_800_000_000.0  # seconds since 1970: 2027-01-15 08:00 UTC


class FakeMachine:
    """The files of a machine below `root`; `machine` reads them. It has four cores, and no file at the start."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = Machine(root, cores=4, clock=lambda: NOW)

    def write(self, path: str, content: object) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
        return file

    def zone(self, number: int, millidegrees: object) -> None:
        self.write(f"sys/class/thermal/thermal_zone{number}/temp", millidegrees)

    def supply(self, name: str, **attributes: object) -> None:
        """Add a power supply; as in the kernel, its entry of the class is a link."""
        for attribute, value in attributes.items():
            self.write(f"sys/devices/{name}/{attribute}", value)
        link = self.root / "sys/class/power_supply" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(self.root / "sys/devices" / name)

    def terminal(self, path: str, last_input: float) -> None:
        os.utime(self.write(path, ""), (last_input, NOW))

    def break_file(self, path: str) -> None:
        """Let each attempt to read the file fail, for root, too: reading a folder is an OSError."""
        (self.root / path).unlink()
        (self.root / path).mkdir()

    def remove(self, path: str) -> None:
        shutil.rmtree(self.root / path)


def laptop(root: Path) -> FakeMachine:
    """Return a machine that has every sensor, with values that are right for any device."""
    made = FakeMachine(root)
    made.zone(0, 41_000)
    made.zone(1, 47_500)
    made.write("proc/loadavg", "0.80 0.50 0.40 1/200 999")
    made.write("proc/meminfo", "MemTotal:  8000000 kB\nMemFree:  100000 kB\nMemAvailable:  2000000 kB")
    made.write("proc/uptime", "5000.25 9000.00")
    made.supply("BAT0", type="Battery", capacity=64)
    made.supply("AC", type="Mains", online=1)
    made.terminal("dev/tty1", NOW - 3000)
    made.terminal("dev/pts/0", NOW - 600)
    return made
