"""Tells the exception that a signal handler raised from one of the code that it interrupted. Knows nothing of netq."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from types import CodeType, TracebackType


class suppress(contextlib.suppress):
    """As contextlib.suppress, but an exception that a signal handler has raised comes out."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return bool(super().__exit__(kind, error, traceback)) and (error is None or raised_by_handler(error) is None)


def raised_by_handler(error: BaseException) -> BaseException | None:
    """Return `error`, or that of its causes which came out of a signal handler; None if there is none.

    A handler runs in the main thread, on top of whatever frame it interrupts, so its frame is in the traceback. For
    rare paths only: this asks for the handler of every signal.
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
