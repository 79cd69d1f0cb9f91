"""The names of what a run makes, and the removal of what earlier runs have left.

Namespaces, cgroups and the folder of a run begin with its name: the process id, and the time at which the process
began, because ids are used again. If no such process exists, its run was killed, and `dead` finds the name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_PREFIX = "edge-boards"
_NAME = re.compile(rf"{_PREFIX}-([0-9]+)-([0-9]+)(-.*)?")


def run_name(pid: int | None = None) -> str:
    """Return the name of what the run of a process makes; that of this process by default."""
    pid = os.getpid() if pid is None else pid
    return f"{_PREFIX}-{pid}-{_start_time(pid)}"


def of_runs(folder: Path) -> list[Path]:
    """Return what runs have made in a folder, whether or not they still run."""
    return sorted(path for path in folder.glob(f"{_PREFIX}-*") if _NAME.fullmatch(path.name))


def dead(folder: Path) -> list[Path]:
    """Return what runs have left in a folder: their processes do not exist."""
    return [path for path in of_runs(folder) if _is_dead(path.name)]


def _is_dead(name: str) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and _start_time(int(match[1])) != match[2]


def _start_time(pid: int) -> str | None:
    """Return when a process began, in clock ticks since the machine's start; None if it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]  # field 22 of proc_pid_stat(5); the name may have spaces
