"""Reads the energy that the processors of this machine have used, from the kernel's powercap counters (Intel, AMD).

Called by edge/usage.py around a task. Every path lies below `root`. Raises nothing: without counters, or without the
right to read them (since Linux 5.10 only root may), the energy is None. Boards with ARM processors have no counters.

A zone "intel-rapl:0" is one processor, and "intel-rapl:0:0" a part of it. The zone "psys" is the whole platform and
contains the processors, so it is left out. The energy includes that of all other programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edge.machine import entries, text_of

_MICRO = 1e-6  # joules of the kernel's unit


@dataclass(frozen=True)
class Meter:
    """The energy counters below a root folder."""

    root: Path = Path("/")

    def read(self) -> dict[str, int]:
        """Return the counters in microjoules, by zone; none at all if one of them cannot be read."""
        counters = {zone.name: _whole(zone / "energy_uj") for zone in self._zones()}
        known = {name: value for name, value in counters.items() if value is not None}
        return known if len(known) == len(counters) else {}

    def joules_since(self, before: Mapping[str, int]) -> float | None:
        """Return the energy used since `before` was read. None: unknown.

        A counter wraps around after some 262 kJ, which is 70 minutes at 62 W. Read it more often than that: only one
        wrap can be seen.
        """
        now = self.read()
        if not before or now.keys() != before.keys():
            return None
        used = [self._used(name, before[name], now[name]) for name in now]
        known = [each for each in used if each is not None]
        return _MICRO * sum(known) if len(known) == len(used) else None

    def _zones(self) -> list[Path]:
        zones = entries(self.root / "sys/class/powercap", "intel-rapl:*")
        return [zone for zone in zones if zone.name.count(":") == 1 and text_of(zone / "name") != "psys"]

    def _used(self, name: str, before: int, now: int) -> int | None:
        if now >= before:
            return now - before
        most = _whole(self.root / "sys/class/powercap" / name / "max_energy_range_uj")
        return None if most is None or most < before else most - before + now


def _whole(path: Path) -> int | None:
    try:
        return int(text_of(path))
    except ValueError:
        return None
