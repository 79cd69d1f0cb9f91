"""The cgroup of a board, of version 1 or 2: its limits, its processes, and what they have used.

Version 2 has one folder for a group. Version 1 has one for each controller, in the place where that is mounted. Below
them a run has a folder of its own name, and its boards are folders in it. Root only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edge import cgroup_files
from edge.boards import leftovers
from edge.boards.limits import PIDS, Limits
from edge.boards.tools import CannotSimulate
from edge.cgroup_files import UNIFIED

_CONTROLLERS = {1: ("cpu", "cpuacct", "memory", "pids"), 2: ("cpu", "memory", "pids")}
_PERIOD = 100_000  # microseconds; the kernel's default. A board of 0.25 cores runs 25 ms of every 100 ms

# By version: files and values that set the limits. Kernels that do not account for swap lack those with "?".
_LIMITS = {
    1: (
        ("cpu", "cpu.cfs_period_us", "{period}"),
        ("cpu", "cpu.cfs_quota_us", "{quota}"),
        ("memory", "memory.limit_in_bytes", "{memory}"),
        ("memory", "memory.memsw.limit_in_bytes?", "{memory}"),  # memory and swap together
        ("memory", "memory.swappiness?", "0"),  # if the kernel does not account for swap
        ("pids", "pids.max", "{pids}"),
    ),
    2: (
        ("cpu", "cpu.max", "{quota} {period}"),
        ("memory", "memory.max", "{memory}"),
        ("memory", "memory.swap.max?", "0"),
        ("pids", "pids.max", "{pids}"),
    ),
}


@dataclass(frozen=True)
class Usage:
    """What a board has used. None: this kernel does not say."""

    memory_peak: int | None  # bytes
    cpu: float  # seconds
    throttled: float  # seconds in which processes of the board waited for its next period
    oom_kills: int


@dataclass(frozen=True)
class Hierarchy:
    """The folders in which cgroups are made, by controller."""

    version: int
    folders: Mapping[str, Path]

    @classmethod
    def find(cls, mounts: str, unified: Path = UNIFIED) -> Hierarchy:
        """Find the cgroups of this machine; `mounts`: the text of /proc/self/mounts. Raises CannotSimulate."""
        if (unified / "cgroup.controllers").exists():
            return cls._version_2(unified)
        folders: dict[str, Path] = {}
        for _, folder, kind, options, *_ in map(str.split, mounts.splitlines()):
            if kind == "cgroup":
                folders |= {name: Path(folder) for name in options.split(",") if name in _CONTROLLERS[1]}
        if absent := [name for name in _CONTROLLERS[1] if name not in folders]:
            raise CannotSimulate(
                f"cgroups: no controller {', '.join(absent)} is mounted; expected cgroups of version 2 at {unified}, "
                "or all controllers of version 1: mount them, or use a machine or virtual machine that has them"
            )
        return cls(1, folders)

    @classmethod
    def _version_2(cls, unified: Path) -> Hierarchy:
        has = (unified / "cgroup.controllers").read_text().split()
        if absent := [name for name in _CONTROLLERS[2] if name not in has]:
            raise CannotSimulate(
                f"cgroups: {unified} has no controller {', '.join(absent)}; boot the kernel with "
                "cgroup_enable=memory, or delegate these controllers to this container"
            )
        return cls(2, dict.fromkeys(_CONTROLLERS[2], unified))

    def sweep(self) -> None:
        """Remove the cgroups of runs that were killed, with their processes."""
        for folder in {path for root in self.folders.values() for path in leftovers.dead(root)}:
            for inner in folder.glob("*/"):
                cgroup_files.kill(inner)
                cgroup_files.remove(inner)
            cgroup_files.remove(folder)

    def make_run(self, name: str) -> Hierarchy:
        """Make the folders of a run; boards are made in what this returns. Raises CannotSimulate."""
        run = Hierarchy(self.version, {key: folder / name for key, folder in self.folders.items()})
        roots, made = set(self.folders.values()), set(run.folders.values())
        try:
            for folder in made:
                folder.mkdir()
            if self.version == 2:
                for folder in (*roots, *made):
                    wanted = " ".join(f"+{name}" for name in _CONTROLLERS[2])
                    cgroup_files.write(folder / "cgroup.subtree_control", wanted)
        except OSError as error:
            run.remove()
            raise _denied(error) from error
        return run

    def remove(self) -> None:
        """Remove the folders of a run, whose boards are removed."""
        for folder in set(self.folders.values()):
            cgroup_files.remove(folder)


class Cgroup:
    """The cgroup of one board."""

    def __init__(self, run: Hierarchy, name: str) -> None:
        self._version = run.version
        self._folders = {key: folder / name for key, folder in run.folders.items()}

    def make(self, limits: Limits) -> None:
        """Make it, and set its limits. Raises CannotSimulate; `remove` then removes what was made."""
        values = {
            "period": _PERIOD,
            "quota": round(limits.cpus * _PERIOD),
            "memory": limits.memory,
            "pids": PIDS,
        }
        try:
            for folder in self._unique():
                folder.mkdir()
            for controller, file, value in _LIMITS[self._version]:
                path = self._folders[controller] / file.removesuffix("?")
                if path.exists() or not file.endswith("?"):
                    cgroup_files.write(path, value.format(**values))
        except OSError as error:
            raise _denied(error) from error

    @property
    def doors(self) -> list[str]:
        """The files to which a process writes 0 to enter."""
        return [str(folder / "cgroup.procs") for folder in self._unique()]

    def kill(self) -> None:
        """Kill the processes in it."""
        for folder in self._unique():
            cgroup_files.kill(folder)

    def remove(self) -> None:
        """Kill what is in it, and remove it."""
        for folder in self._unique():
            cgroup_files.kill(folder)
            cgroup_files.remove(folder)

    def usage(self) -> Usage:
        """Return what its processes have used so far."""
        return self._usage_1() if self._version == 1 else self._usage_2()

    def _usage_1(self) -> Usage:
        return Usage(
            self._number("memory", "memory.max_usage_in_bytes"),
            (self._number("cpuacct", "cpuacct.usage") or 0) / 1e9,
            self._table("cpu", "cpu.stat").get("throttled_time", 0) / 1e9,
            self._table("memory", "memory.oom_control").get("oom_kill", 0),
        )

    def _usage_2(self) -> Usage:
        processor = self._table("cpu", "cpu.stat")
        return Usage(
            self._number("memory", "memory.peak"),  # since Linux 5.19
            processor.get("usage_usec", 0) / 1e6,
            processor.get("throttled_usec", 0) / 1e6,
            self._table("memory", "memory.events").get("oom_kill", 0),
        )

    def _number(self, controller: str, file: str) -> int | None:
        path = self._folders[controller] / file
        return int(path.read_text()) if path.exists() else None

    def _table(self, controller: str, file: str) -> dict[str, int]:
        lines = (self._folders[controller] / file).read_text().splitlines()
        return {name: int(value) for name, value in map(str.split, lines)}

    def _unique(self) -> Iterable[Path]:
        return dict.fromkeys(self._folders.values())


def _denied(error: OSError) -> CannotSimulate:
    return CannotSimulate(
        f"cgroups: {error.filename}: {error.strerror}; expected cgroups that this process may make: run on the machine "
        "itself or in a privileged container"
    )
