"""The limits of the process that trains, the table [training] of a device's file, and of the messages to the device.

Read by edge/config.py. The child applies them to itself (edge/worker.py); edge/group.py applies `memory` to all
processes of the training, where it can.
"""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass, replace

from netq.options import ConnectionOptions
from netq.validate import expect, flag, is_number, is_whole

_OOM_SCORE = "800"  # of 1000: if memory runs out, the kernel kills the training before the agent and other programs
MB = 10**6
# Copies of a model that a device may have at one time: the task as it arrives, its file for the child, the trained
# model, the last reply, and the next task, which may come meanwhile.
_MODELS = 5
_DEFAULT = ConnectionOptions()


@dataclass(frozen=True)
class Limits:
    """What the training may use. Raises InvalidOption.

    memory:  MB of data that the process may allocate. A shared library, and the task itself, do not count. None: any.
    seconds: that a task, or the import of the functions, may take. Then the process is killed. None: any.
    threads: of numpy's and torch's libraries. None: as many as they like.
    nice:    added to the priority, 0 to 19: 19 leaves the processor to all other programs.
    keep:    whether the process stays between two tasks. It then keeps its memory, and starts and imports only once.
             None: if it takes a quarter of the machine's memory at most.
    """

    memory: int | None = None
    seconds: float | None = None
    threads: int | None = None
    nice: int = 0
    keep: bool | None = None

    def __post_init__(self) -> None:
        for name in ("memory", "threads"):
            value = getattr(self, name)
            expect(value is None or is_whole(value, 1, 10**6), f"Limits.{name}", value, "a whole number above 0")
        right = self.seconds is None or (is_number(self.seconds, 0, 10**9) and self.seconds > 0)
        expect(right, "Limits.seconds", self.seconds, "seconds, more than 0")
        expect(is_whole(self.nice, 0, 19), "Limits.nice", self.nice, "a whole number from 0 to 19")
        if self.keep is not None:
            flag("Limits.keep", self.keep)

    def environment(self) -> dict[str, str]:
        """Return the environment variables that limit the threads of numerical libraries."""
        if self.threads is None:
            return {}
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        return dict.fromkeys(names, str(self.threads))

    def bound(self, connection: ConnectionOptions, memory: int | None) -> ConnectionOptions:
        """Return the options of a device's link, with a `message_size` and a `memory` that fit it.

        A message is at most what the training may allocate, and its part of the machine's `memory` (bytes; None:
        unknown). Options that are not netq's default stay.
        """
        parts = [] if memory is None else [memory // _MODELS]
        parts += [] if self.memory is None else [self.memory * MB]
        size, room = connection.message_size, connection.memory
        return replace(
            connection,
            message_size=min([size, *parts]) if size == _DEFAULT.message_size else size,
            memory=min([room, *parts]) if room == _DEFAULT.memory else room,
        )

    def apply(self) -> None:
        """Limit this process."""
        os.nice(self.nice)
        if self.memory is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (self.memory * MB, self.memory * MB))
        # A hardened system may refuse.
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(_OOM_SCORE)
