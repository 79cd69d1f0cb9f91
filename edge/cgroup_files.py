"""Writes to the files of a cgroup, kills its processes, and removes it.

Used by edge/group.py for the training of an agent, and by edge/boards/cgroups.py for boards. The files are described in
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1 of Linux.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

UNIFIED = Path("/sys/fs/cgroup")  # where version 2 is mounted
_PATIENCE = 5.0  # seconds until a killed process has left its cgroup


def write(path: Path, value: str) -> None:
    """Write to a file of the kernel, which takes a value in one write, and may not be readable. Raises OSError."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        error.filename = str(path)  # an error of write() has none
        raise
    finally:
        os.close(fd)


def pids(folder: Path) -> list[int]:
    """Return the processes in a cgroup; none if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    return []


def kill(folder: Path) -> None:
    """Kill the processes in a cgroup. Those that they start meanwhile may stay if Linux is older than 5.14."""
    with contextlib.suppress(OSError):
        write(folder / "cgroup.kill", "1")
        return
    for pid in pids(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def empty(folder: Path) -> None:
    """Kill the processes in a cgroup, and wait until they have left it; a few seconds at most."""
    deadline = time.monotonic() + _PATIENCE
    while pids(folder) and time.monotonic() < deadline:
        kill(folder)
        time.sleep(0.001)


def remove(folder: Path) -> None:
    """Remove a cgroup, which is busy for a moment after its last process was killed."""
    deadline = time.monotonic() + _PATIENCE
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            kill(folder)
            time.sleep(0.02)
