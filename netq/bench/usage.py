"""What this process uses, CPU and memory; what it runs on; and keeping it on one core.

Memory is resident memory as Linux tells it; elsewhere it is not known, and None.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from netq.version import version

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_MACHINE = Path("/proc/meminfo")
_PEAK = "5"  # proc(5): the peak begins anew, at what is resident now

Facts = dict[str, str]


class Usage(NamedTuple):
    """Of the whole process, all its threads, while something was measured."""

    cpu: int  # nanoseconds
    resident: int | None  # bytes: the peak
    extra: int | None  # bytes: the peak above what was resident before


class Meter:
    """Measures from its making on."""

    def __init__(self) -> None:
        try:
            _CLEAR.write_text(_PEAK)
            self._before: int | None = _peak()
        except OSError:
            self._before = None
        self._cpu = time.process_time_ns()

    def read(self) -> Usage:
        """Return what was used until now."""
        cpu = time.process_time_ns() - self._cpu
        if self._before is None:
            return Usage(cpu, None, None)
        peak = _peak()
        return Usage(cpu, peak, max(0, peak - self._before))


def one_by_one(usages: Sequence[Usage]) -> Usage:
    """Return what one process used in several periods: CPU in all, and the highest of the peaks."""

    def most(values: Iterable[int | None]) -> int | None:
        return max((value for value in values if value is not None), default=None)

    return Usage(sum(u.cpu for u in usages), most(u.resident for u in usages), most(u.extra for u in usages))


def at_once(usages: Sequence[Usage]) -> Usage:
    """Return what one process used in one period that several meters saw.

    Each meter sees the whole process. They begin one after the other, while the period is prepared: the highest value
    before the period is that of the meter that began when all was ready.
    """
    cpu = max(u.cpu for u in usages)
    known = [(u.resident, u.resident - u.extra) for u in usages if u.resident is not None and u.extra is not None]
    if not known:
        return Usage(cpu, None, None)
    peak = max(resident for resident, _ in known)
    return Usage(cpu, peak, max(0, peak - max(before for _, before in known)))


def facts() -> Facts:
    """Return what this side runs on."""
    return {
        "python": platform.python_version(),
        "netq": version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": str(os.cpu_count() or 1),
    }


def free_memory() -> int | None:
    """Return how many bytes more this machine can hold; None if the system does not tell."""
    try:
        return _read(_MACHINE, "MemAvailable")
    except (OSError, StopIteration):
        return None


def cores() -> list[int]:
    """Return the cores that this process may use; none if the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def may_use(core: int) -> bool:
    """Return whether this thread can be kept on a core."""
    try:
        with pinned(core):
            return True
    except (OSError, OverflowError, AttributeError):  # no such core, not ours, or a system that cannot do it
        return False


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Keep this thread, and those that it starts meanwhile, on one core; None: wherever they were."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _peak() -> int:
    return _read(_STATUS, "VmHWM")


def _read(path: Path, name: str) -> int:
    """Return the bytes that a line of /proc tells."""
    lines = path.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
