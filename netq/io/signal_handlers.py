"""Distinguishes exceptions that a signal handler raised from those of the interrupted code; and has NO_SIGPIPE.

Knows nothing of netq.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import socket
import threading
from types import CodeType, TracebackType

# A flag of each send to a peer, which may have hung up. Python ignores SIGPIPE, but a program may have set it to its
# default, which ends the process.
NO_SIGPIPE = getattr(socket, "MSG_NOSIGNAL", 0)


class suppress(contextlib.suppress):
    """Like contextlib.suppress, but lets an exception pass that a signal handler has raised."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return bool(super().__exit__(kind, error, traceback)) and (error is None or raised_by_handler(error) is None)


def raised_by_handler(error: BaseException) -> BaseException | None:
    """Return `error`, or the one of its causes that a signal handler raised; None if there is none.

    A handler runs in the main thread, on top of the interrupted frame, so its frame is in the traceback. For rare paths
    only, because this asks for the handler of each signal.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    found: BaseException | None = error
    while found is not None:
        trace = found.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in codes:
                return found
            trace = trace.tb_next
        found = found.__cause__
    return None


def _code(handler: object) -> CodeType | None:
    """Return the code that a handler runs; None if it is no Python function."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)  # of a method
    code = getattr(handler, "__code__", None)
    if code is None and callable(handler):
        code = getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
