"""Runs the command of a device's owner when the last model is there. Called by edge/agent.py, in its thread."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

log = logging.getLogger("edge")

_LIMIT = 600.0  # seconds that the command may take: it may load the model, or restart a service
_LOOK = 0.2  # seconds between looks whether it has ended


def run(command: Sequence[str], model: Path, tick: Callable[[], object], limit: float = _LIMIT) -> None:
    """Run a command with the path of the model as its last argument. A failure is an error in the log.

    tick:  called again and again while the command runs.
    limit: seconds that it may take; then its process group is killed.
    """
    try:
        process = subprocess.Popen([*command, str(model)], stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        log.error("model.hook: %s cannot be run (%s)", command[0], error.strerror)
        return
    until = time.monotonic() + limit
    try:
        while process.poll() is None and time.monotonic() < until:
            tick()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK)
    finally:  # also when this process is told to end
        if is_late := process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if is_late:
        log.error("model.hook: %s took longer than %g s; killed", command[0], limit)
    elif process.returncode:
        log.error("model.hook: %s ended with status %d", command[0], process.returncode)
