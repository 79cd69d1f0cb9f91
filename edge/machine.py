"""Reads the sensors of this machine from /sys, /proc and /dev.

Called by the loop of the agent; edge/fitness.py judges what it returns. Every path lies below `root`, so that a test
can make a machine of files. Starts no process, keeps no file open and raises nothing: a value that cannot be read is
None. Sensors may come and go, so they are looked up again for each reading.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import filter as matching
from os.path import exists  # Path.exists may raise OSError
from pathlib import Path

_KIB_IN_MB = 1024 / 1e6  # /proc/meminfo writes kB for units of 1,024 bytes


@dataclass(frozen=True)
class Readings:
    """What the sensors measure at one moment. None: unknown.

    temperature: °C of the hottest thermal zone.
    load:        load average of the last minute, per core.
    battery:     percent of charge, of the fullest battery that supplies the machine.
    mains:       whether a supply is online, or the machine has no battery.
    minute:      minutes since midnight, local time.
    free_memory: MB (1,000,000 bytes) that programs can have without swapping.
    idle:        seconds since the last input on a terminal, or since the start of the machine if there was none.
    traffic:     MB that 60 minutes would have with the next round. Machine does not know it; edge/traffic.py does.
    """

    temperature: float | None = None
    load: float | None = None
    battery: float | None = None
    mains: bool | None = None
    minute: int | None = None
    free_memory: float | None = None
    idle: float | None = None
    traffic: float | None = None


@dataclass(frozen=True)
class Machine:
    """The sensors below a root folder.

    root:  the folder that has `sys`, `proc` and `dev`.
    cores: the number of cores that share the load; None: those of this machine that are online.
    clock: returns seconds since 1970, as time.time does.
    """

    root: Path = Path("/")
    cores: int | None = None
    clock: Callable[[], float] = time.time

    def read(self) -> Readings:
        """Return the values of all sensors."""
        local = time.localtime(self.clock())
        return Readings(
            temperature=self._temperature(),
            load=self._load(),
            battery=self._battery(),
            mains=self._mains(),
            minute=60 * local.tm_hour + local.tm_min,
            free_memory=self._free_memory(),
            idle=self._idle(),
        )

    def missing(self) -> dict[str, str]:
        """Return the sensors that this machine does not have: the name in Readings, and what is not there.

        A sensor that exists and cannot be read is not missing.
        """
        batteries, proc = self._batteries(), self.root / "proc"
        terminals = self._terminals() or exists(self.root / "dev/pts")  # it is empty until the first login
        required = {
            "temperature": (self._zones(), "no thermal zone"),
            "load": (exists(proc / "loadavg"), "no /proc/loadavg"),
            "battery": (any(exists(each / "capacity") for each in batteries), "no battery that tells its charge"),
            "mains": (not batteries or self._chargers(), "a battery, and no supply that tells whether it is online"),
            "free_memory": (exists(proc / "meminfo"), "no /proc/meminfo"),
            "idle": (terminals and exists(proc / "uptime"), "no terminals in /dev, or no /proc/uptime"),
        }
        return {name: lack for name, (there, lack) in required.items() if not there}

    def memory(self) -> int | None:
        """Return the bytes of memory that this process may use: the machine's, or the least of its cgroups' limits."""
        limits = [None if (total := self._meminfo("MemTotal")) is None else total * 1024]
        for line in text_of(self.root / "proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):  # of version 2, of version 1
                folder = self.root / "sys/fs/cgroup" / controllers / path.lstrip("/")
                name = "memory.limit_in_bytes" if controllers else "memory.max"
                limits += [_number(each / name) for each in (folder, *folder.parents)]
        return min((int(limit) for limit in limits if limit is not None), default=None)

    def resident(self, pid: int) -> int:
        """Return the bytes of memory that a process has; 0 if it has ended."""
        fields = text_of(self.root / f"proc/{pid}/statm").split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0

    def _temperature(self) -> float | None:
        hottest = _greatest(_number(zone) for zone in self._zones())
        return None if hottest is None else hottest / 1000  # the kernel's unit is millidegrees

    def _zones(self) -> list[Path]:
        return [zone / "temp" for zone in entries(self.root / "sys/class/thermal", "thermal_zone*")]

    def _load(self) -> float | None:
        load = _number(self.root / "proc/loadavg")
        return None if load is None else load / (self.cores or os.cpu_count() or 1)

    def _battery(self) -> float | None:
        return _greatest(_number(battery / "capacity") for battery in self._batteries())

    def _mains(self) -> bool | None:
        """Return whether the machine runs on mains. A supply that cannot be read may be online, so it makes it None."""
        if not self._batteries():
            return True
        online = [_number(charger / "online") for charger in self._chargers()]
        if any(online):
            return True
        return None if None in online or not online else False

    def _batteries(self) -> list[Path]:
        return [supply for supply in self._supplies() if text_of(supply / "type") == "Battery"]

    def _chargers(self) -> list[Path]:
        """Return the supplies that tell whether they are online. Drivers have USB, USB_C, USB_PD and more types."""
        kinds = ("Mains", "USB", "Wireless")
        found = [supply for supply in self._supplies() if text_of(supply / "type").startswith(kinds)]
        return [charger for charger in found if exists(charger / "online")]

    def _supplies(self) -> list[Path]:
        """Return the power supplies of the machine, without those of its devices, as the battery of a mouse."""
        supplies = entries(self.root / "sys/class/power_supply", "*")
        return [supply for supply in supplies if text_of(supply / "scope") != "Device"]

    def _free_memory(self) -> float | None:
        kib = self._meminfo("MemAvailable")
        return None if kib is None else kib * _KIB_IN_MB

    def _meminfo(self, wanted: str) -> float | None:
        for line in text_of(self.root / "proc/meminfo").splitlines():
            name, _, value = line.partition(":")
            if name == wanted:
                return _parse(value)
        return None

    def _idle(self) -> float | None:
        """Return seconds since the last input on a terminal.

        The kernel sets the access time of a terminal when a program reads input from it, exact to 8 seconds; `w` shows
        the same value. The clock of a board without a battery for it jumps after the start: an access time in the
        future tells nothing, and no terminal can be idle for longer than the machine runs.
        """
        uptime = _number(self.root / "proc/uptime")
        if uptime is None:
            return None
        times = [_access_time(terminal) for terminal in self._terminals()]
        now = self.clock()  # after the access times, so that none of them is later by right
        return min([uptime, *(now - each for each in times if each is not None and each <= now)])

    def _terminals(self) -> list[Path]:
        """Return the screens' terminals, those of ssh and of terminal windows, and the serial console.

        Other serial ports have no person at them. Output of a program sets the access time of /dev/pts/ptmx.
        """
        dev, consoles = self.root / "dev", text_of(self.root / "sys/class/tty/console/active").split()
        found = [*entries(dev, "tty[0-9]*"), *entries(dev / "pts", "[0-9]*"), *(dev / name for name in consoles)]
        return [terminal for terminal in found if exists(terminal)]


def _greatest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _number(path: Path) -> float | None:
    """Return the first number of a file."""
    return _parse(text_of(path))


def _parse(text: str) -> float | None:
    try:
        number = float(text.split()[0])
    except (ValueError, IndexError):
        return None
    return number if math.isfinite(number) else None


def entries(folder: Path, pattern: str) -> list[Path]:
    """Return the entries of a folder whose names match; none if it cannot be read. Path.glob may raise OSError."""
    try:
        return [folder / name for name in matching(os.listdir(folder), pattern)]
    except OSError:
        return []


def text_of(path: Path) -> str:
    """Return the content of a small file; "" if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


def _access_time(path: Path) -> float | None:
    try:
        return path.stat().st_atime
    except OSError:  # its session is over
        return None
