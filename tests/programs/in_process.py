"""Runs a command of this project in the process of the tests, which it leaves as it was."""

from __future__ import annotations

import contextlib
import io
import logging
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def own_process() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Let a command set up log and signals as in a process of its own. Return what becomes its stdout and stderr."""
    root, out, errors = logging.getLogger(), io.StringIO(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    signals = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)}
    root.handlers.clear()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            yield out, errors
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for signum, handler in signals.items():
            signal.signal(signum, handler)
