"""The processes of the training: the child, and all that it has started. Limits them, and kills them when it is over.

Owned by edge/child.py, in the agent's thread. What holds depends on what this process may do:

a cgroup       limits memory and processes of all of them together, also shared memory; none escapes. It has to be of
               version 2 and this process's own: delegated by systemd (edge/install.py), or a container's
children       of a process that adopts orphans: none escapes, because a daemon becomes a child of this process
process group  kills what has not left it. For an agent in a process that may have other children

The command `edge` asks for all three (`of_this_process`); `edge.run` leaves the process as it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

from edge import cgroup_files
from edge.cgroup_files import UNIFIED, write
from edge.limits import MB, Limits
from edge.machine import text_of

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_PATIENCE = 5.0  # seconds until killed orphans have ended
_CONTROLLERS = ("memory", "pids")
_AGENT_PIDS = 32  # processes and threads that the training leaves to the agent: it has some 4, and starts few


class Group:
    """The processes of one training at a time.

    adopts: this process is the agent's alone, and adopts orphans.
    cgroup: of the training. None: `lack` says why there is none.
    """

    def __init__(self, adopts: bool = False, cgroup: Cgroup | None = None, lack: str = "edge.run makes none") -> None:
        self._adopts = adopts
        self._cgroup = cgroup
        self._lack = lack

    @classmethod
    def of_this_process(cls, limits: Limits) -> Group:
        """Return the group of an agent that owns its process, which is changed: it adopts orphans, and has a cgroup."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            return cls(adopts=True, cgroup=Cgroup.make(limits))
        except OSError as error:
            return cls(adopts=True, lack=f"{error.filename}: {error.strerror}")

    def says(self) -> str:
        """Return for what training.memory holds, in a line."""
        lack = self._lack if self._cgroup is None else self._cgroup.lack
        if not lack:
            return "the training has a cgroup: training.memory holds for all its processes, and for shared memory"
        return f"the training has no cgroup ({lack}): training.memory is for each process, without shared memory"

    @property
    def is_whole(self) -> bool:
        """Whether training.memory holds for all processes together."""
        return self._cgroup is not None and not self._cgroup.lack

    def limit(self, limits: Limits) -> None:
        """Set other limits, before the next child. Raises OSError."""
        if self._cgroup is not None:
            self._cgroup.limit(limits)

    def add(self, pid: int) -> None:
        """Take in the child, which has started no process yet. Raises OSError."""
        if self._cgroup is not None:
            self._cgroup.add(pid)

    def reap(self, pid: int) -> None:
        """Let orphans of the child that have ended disappear, while it goes on."""
        if self._adopts:
            for orphan in _children() - {pid}:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(orphan, os.WNOHANG)

    def kill(self, pid: int) -> int:
        """Kill the child and all that it has started. Return the child's status, as os.waitpid."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)  # it may have left its group
        status = os.waitpid(pid, 0)[1]
        if self._cgroup is not None:
            cgroup_files.empty(self._cgroup.folder)
        if self._adopts:
            _kill_children()
        return status

    def ran_out(self) -> bool:
        """Return whether the last child has been killed because all together needed more than training.memory."""
        return self._cgroup is not None and self._cgroup.ran_out()


class Cgroup:
    """The cgroup of the training, next to that of the agent.

    lack: why training.memory does not hold; "" if it does.
    """

    def __init__(self, folder: Path, lack: str) -> None:
        self.folder = folder
        self.lack = lack
        self._ooms = 0

    @classmethod
    def make(cls, limits: Limits, root: Path = UNIFIED, own: str | None = None) -> Cgroup:
        """Divide this process's cgroup into two: one with this process, and one for the training. Raises OSError.

        own: the text of /proc/self/cgroup.
        """
        lines = (text_of(Path("/proc/self/cgroup")) if own is None else own).splitlines()
        path = next((line[3:] for line in lines if line.startswith("0::")), "")
        folder = root / path.lstrip("/")
        if not (folder / "cgroup.procs").exists():
            raise OSError(0, "no cgroup of version 2", str(folder))
        if cgroup_files.pids(folder) != [os.getpid()]:  # a cgroup with processes has no cgroups below it
            raise OSError(0, "has other processes, too", str(folder))
        agent, training = folder / "agent", folder / "training"
        agent.mkdir(exist_ok=True)
        try:
            training.mkdir(exist_ok=True)
            write(agent / "cgroup.procs", str(os.getpid()))
            has = [name for name in _CONTROLLERS if name in text_of(folder / "cgroup.controllers").split()]
            write(folder / "cgroup.subtree_control", " ".join(f"+{name}" for name in has))
            _limit(training, limits, text_of(folder / "pids.max"))
        except OSError:
            with contextlib.suppress(OSError):
                write(folder / "cgroup.procs", str(os.getpid()))
                training.rmdir()
                agent.rmdir()
            raise
        lack = "" if "memory" in has else f"{folder}: has no controller memory; boot with cgroup_enable=memory"
        return cls(training, lack)

    def limit(self, limits: Limits) -> None:
        """Set the limits. Raises OSError."""
        _limit(self.folder, limits, text_of(self.folder.parent / "pids.max"))

    def add(self, pid: int) -> None:
        """Take in a process. Raises OSError."""
        write(self.folder / "cgroup.procs", str(pid))
        self._ooms = self._count_ooms()

    def ran_out(self) -> bool:
        """Return whether its processes have needed more than memory.max since the last `add`."""
        return self._count_ooms() > self._ooms

    def _count_ooms(self) -> int:
        events = text_of(self.folder / "memory.events").split()
        return int(events[events.index("oom") + 1]) if "oom" in events else 0


def _limit(folder: Path, limits: Limits, pids: str) -> None:
    """Set the limits of the training's cgroup. `pids`: the limit of the agent and the training together."""
    is_free = limits.memory is None
    values = {
        "memory.max": "max" if limits.memory is None else str(limits.memory * MB),
        "memory.oom.group": "0" if is_free else "1",  # a training without some of its processes may wait for ever
        "memory.swap.max": "max" if is_free else "0",  # is not there if the kernel does not account for swap
    }
    for name, value in values.items():
        if (folder / name).exists():
            write(folder / name, value)
    if pids.isdigit() and (folder / "pids.max").exists():
        write(folder / "pids.max", str(max(1, int(pids) - _AGENT_PIDS)))


def _kill_children() -> None:
    """Kill the children of this process, and theirs, which become its children."""
    until = time.monotonic() + _PATIENCE
    while (children := _children()) and time.monotonic() < until:
        for child in children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, os.WNOHANG)
        time.sleep(0.001)


def _children() -> set[int]:
    """Return the processes whose parent is this one."""
    own = str(os.getpid())
    found = [pid for pid in os.listdir("/proc") if pid.isdigit()]
    # Field 4 of proc_pid_stat(5); the name before it may have spaces.
    return {int(pid) for pid in found if text_of(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[1:2] == [own]}
