"""Measures what a task has used. In the child process (edge/tasks.py, edge/flower_tasks.py).

usage.cpu_seconds   of the process, and of those that it has started and waited for
usage.memory_mb     the peak of the process, in MB (1,000,000 bytes)
usage.joules        of the processors, where the kernel counts them (edge/energy.py)
"""

from __future__ import annotations

import resource

from edge.energy import Meter


class Usage:
    """Measures one task at a time."""

    def __init__(self) -> None:
        self._meter = Meter()
        self.begin()

    def begin(self) -> None:
        """Begin a task."""
        self._seconds, self._joules = _cpu_seconds(), self._meter.read()

    def measured(self) -> dict[str, float]:
        """Return what was used since `begin`."""
        used = {"usage.cpu_seconds": _cpu_seconds() - self._seconds, "usage.memory_mb": _peak_memory()}
        if (energy := self._meter.joules_since(self._joules)) is not None:
            used["usage.joules"] = energy
        return used


def _cpu_seconds() -> float:
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def _peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
