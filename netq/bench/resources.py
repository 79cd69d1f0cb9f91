"""CPU time and memory of this process, facts about its machine, and pinning to a core.

Memory is resident memory as Linux reports it. On other systems it is unknown: None.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from netq.version import VERSION

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_MACHINE = Path("/proc/meminfo")
_RESET_PEAK = "5"  # proc(5), clear_refs: reset the peak (VmHWM) to what is resident now

Facts = dict[str, str]


class Usage(NamedTuple):
    """What the whole process, with all its threads, used during a measurement."""

    cpu: int  # nanoseconds
    resident: int | None  # bytes: the peak
    extra: int | None  # bytes: the peak above what was resident before


class Meter:
    """Measures what the process uses from now on: memory, and CPU time, which `begin` starts again."""

    def __init__(self) -> None:
        try:
            _CLEAR.write_text(_RESET_PEAK)
            self._before: int | None = peak()
        except OSError:
            self._before = None
        self.begin()

    def begin(self) -> None:
        """Measure CPU time from now on."""
        self._cpu = time.process_time_ns()

    def read(self) -> Usage:
        """Return what was used since the meter was made."""
        cpu = time.process_time_ns() - self._cpu
        if self._before is None:
            return Usage(cpu, None, None)
        resident = peak()
        return Usage(cpu, resident, max(0, resident - self._before))


def one_by_one(usages: Sequence[Usage]) -> Usage:
    """Return what one process used in several periods: the sum of CPU time, and the highest peaks."""

    def most(values: Iterable[int | None]) -> int | None:
        return max((value for value in values if value is not None), default=None)

    return Usage(sum(u.cpu for u in usages), most(u.resident for u in usages), most(u.extra for u in usages))


def facts() -> Facts:
    """Return facts about this side's machine and software."""
    return {
        "python": platform.python_version(),
        "netq": VERSION,
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": str(os.cpu_count() or 1),
    }


def free_memory() -> int | None:
    """Return the bytes of memory that are available on this machine; None if the system does not report them."""
    try:
        return _read(_MACHINE, "MemAvailable")
    except (OSError, StopIteration):
        return None


def cores() -> list[int]:
    """Return the cores that this process may use; an empty list if the system does not report them."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def may_use(core: int) -> bool:
    """Return whether this thread can be kept on a core."""
    try:
        with pinned(core):
            return True
    except (OSError, OverflowError, AttributeError):  # no such core, not allowed, or not possible on this system
        return False


def pin(number: int) -> None:
    """Pin this process to one of the cores that it may use, the first for 0; to none if there is only one."""
    if len(own := cores()) > 1:
        os.sched_setaffinity(0, {own[number % len(own)]})


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Pin this thread, and the threads and processes that it starts meanwhile, to one core; None: do nothing."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def peak() -> int:
    """Return the peak of this process's resident memory in bytes, since a meter was made. Linux only."""
    return _read(_STATUS, "VmHWM")


def _read(path: Path, name: str) -> int:
    """Return the bytes that a line of a file in /proc reports."""
    lines = path.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
