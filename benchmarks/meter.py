"""Time, CPU and memory of a process, and pinning to a core. Linux only. Used by both processes of a measurement."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def pin(core: int) -> None:
    """Pin this thread, and those that it starts from now on, to one core."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})


class Meter:
    """Measures this process with all its threads: memory from `baseline` on, time and CPU from `begin` to `end`."""

    def __init__(self) -> None:
        self.times: list[int] = []  # nanoseconds, for tasks that time each message
        self.steps: dict[int, dict[str, Any]] = {}  # by size, for the task "sweep"
        self.rate = 0.0  # messages a second, for the task "load"
        self.curve: list[dict[str, float]] = []  # points of benchmarks/load.py, for the task "curve"
        self._resident = self._began = self._ended = self._cpu = 0.0

    def baseline(self) -> None:
        """Measure memory from now on. The message to send is allocated; nothing has been received."""
        _CLEAR.write_text("5")  # reset the peak to what is resident now
        self._resident = status("VmHWM")

    def begin(self) -> None:
        self._cpu = _cpu()
        self._began = time.perf_counter()

    def end(self) -> None:
        self._ended = time.perf_counter()
        self._cpu = _cpu() - self._cpu

    def figures(self) -> dict[str, Any]:
        """Return what was measured. `began` and `ended` are CLOCK_MONOTONIC, which all processes share."""
        peak = status("VmHWM")
        return {
            "began": self._began,
            "ended": self._ended,
            "cpu": self._cpu,
            "extra": peak - self._resident,
            "resident": peak,
            "times": self.times,
            "rate": self.rate,
            "curve": self.curve,
            "steps": self.steps,
        }


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def status(key: str) -> int:
    """Return a figure of /proc/self/status, in bytes."""
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
