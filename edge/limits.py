"""The limits of the child process that trains: the table [training] of a device's file."""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass

from netq.validate import expect, flag, is_number, is_whole

_OOM_SCORE = "800"  # of 1000: if memory runs out, the kernel kills the training before the agent and other programs
_MB = 10**6


@dataclass(frozen=True)
class Limits:
    """What the training may use. Raises InvalidOption.

    memory:  MB of data that the process may allocate. A shared library, and the task itself, do not count. None: any.
    seconds: that a task, or the import of the functions, may take. Then the process is killed. None: any.
    threads: of numpy's and torch's libraries. None: as many as they like.
    nice:    added to the priority, 0 to 19: 19 leaves the processor to all other programs.
    keep:    whether the process stays between two tasks. It then keeps its memory, and starts no interpreter for each.
    """

    memory: int | None = None
    seconds: float | None = None
    threads: int | None = None
    nice: int = 0
    keep: bool = False

    def __post_init__(self) -> None:
        for name in ("memory", "threads"):
            value = getattr(self, name)
            expect(value is None or is_whole(value, 1, 10**6), f"Limits.{name}", value, "a whole number above 0")
        right = self.seconds is None or (is_number(self.seconds, 0, 10**9) and self.seconds > 0)
        expect(right, "Limits.seconds", self.seconds, "seconds, more than 0")
        expect(is_whole(self.nice, 0, 19), "Limits.nice", self.nice, "a whole number from 0 to 19")
        flag("Limits.keep", self.keep)

    def environment(self) -> dict[str, str]:
        """Return the environment variables that limit the threads of numerical libraries."""
        if self.threads is None:
            return {}
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        return dict.fromkeys(names, str(self.threads))

    def apply(self) -> None:
        """Limit this process."""
        os.nice(self.nice)
        if self.memory is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (self.memory * _MB, self.memory * _MB))
        with (
            contextlib.suppress(OSError),
            open("/proc/self/oom_score_adj", "w") as file,
        ):  # a hardened system may refuse
            file.write(_OOM_SCORE)
