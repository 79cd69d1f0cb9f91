"""Where an exception of a signal handler may come out: Ctrl-C is put off to the end of a step.

A handler runs in the main thread, between any two instructions. A user's thread that holds a baton or a lock of an
inbox is in the middle of a step then, and an exception would leave half of it done. So the code of the modules below
is a *step*, except functions that are `interruptible`: these wait, or run code of the user, and an exception that comes
out of them changes nothing. The frames of the interrupted thread say which of the two it is in.

- Ctrl-C with Python's own handler is put off while the thread is in a step: the signal is sent again a moment later.
- `outside_steps` does the same for a handler of the user.
- Any other handler that raises in a step ends the communicator, with an error that says so (netq/io/baton.py).

Trio protects its internals in the same way (trio.lowlevel.disable_ki_protection). This module has NO_SIGPIPE, too.
Knows nothing of the rest of netq.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the functions of `signal` cost more: they make enum members of results
import _thread
import contextlib
import functools
import signal
import socket
import threading
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar

Handler = Callable[[int, FrameType | None], Any]
_F = TypeVar("_F", bound=Callable[..., Any])

# A flag of each send to a peer, which may have hung up. Python ignores SIGPIPE, but a program may have set it to its
# default, which ends the process.
NO_SIGPIPE = getattr(socket, "MSG_NOSIGNAL", 0)

# The functions through which a user's thread comes into a step; what they call has not to be named.
_STEPS = frozenset(
    {
        "netq.core",
        "netq.polling",
        "netq.io.baton",
        "netq.io.loop",
        "netq.runtime.delivery",
        "netq.runtime.endpoint",
        "netq.runtime.inbox",
        "netq.runtime.peer",
    }
)
_AGAIN = 0.001  # seconds until a signal that was put off is sent again; a step takes less in most cases
_interruptible: set[CodeType] = set()
_SIGNALS = tuple(map(int, signal.valid_signals()))
_main = threading.main_thread().ident or 0
_never = threading.Lock()  # never released: to wait for it is a pause, also with a clock that jumps
_never.acquire()


def interruptible(function: _F) -> _F:
    """Let signal handlers raise in this function, and in what it calls of other modules."""
    _interruptible.add(function.__code__)
    return function


def in_step(frame: FrameType | None) -> bool:
    """Return whether this frame, or the nearest of its callers that is netq's, is in a step.

    A finaliser is one, also of a user: Python drops an exception there.
    """
    while frame is not None:
        if (found := _is_step(frame)) is not None:
            return found
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _is_step(frame: FrameType) -> bool | None:
    """Return whether this frame is that of a step; None if it does not say."""
    if frame.f_code in _interruptible:
        return False
    return True if frame.f_globals.get("__name__") in _STEPS else None


def outside_steps(handler: Handler) -> Handler:
    """Return a signal handler that calls `handler` where netq may be interrupted: now, or a moment later.

    A handler that raises, on purpose or because it may fail, is installed as `signal.signal(SIGTERM,
    netq.outside_steps(handler))`. Otherwise its exception may come out in the middle of a step of a communicator, which
    then ends. A signal that was put off goes to the handler that is set a moment later, if that is a function.
    """

    @functools.wraps(handler)
    def handle(number: int, frame: FrameType | None) -> None:
        if not (in_step(frame) and _send_again(number)):
            handler(number, frame)

    return handle


_handle_ctrl_c = outside_steps(signal.default_int_handler)


def protect() -> None:
    """Have Ctrl-C put off in steps of this thread, if it is the main thread and Python's own handler is set.

    Called before each step, because others may set the handler again: a notebook does so for each cell.
    """
    if threading.get_ident() == _main and _signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _signal.signal(signal.SIGINT, _handle_ctrl_c)


def unprotect() -> None:
    """Set Python's own handler for Ctrl-C again, if `protect` has replaced it: asyncio and trio look for that."""
    if threading.get_ident() == _main and _signal.getsignal(signal.SIGINT) is _handle_ctrl_c:
        _signal.signal(signal.SIGINT, signal.default_int_handler)


def _send_again(number: int) -> bool:
    """Send a signal a moment later; return False if no thread can be started for that, at a limit of the system."""
    try:
        _thread.start_new_thread(_send, (number,))  # not threading.Thread: the interrupted code may hold its locks
    except RuntimeError:
        return False
    return True


def _send(number: int) -> None:
    _never.acquire(timeout=_AGAIN)
    if not callable(_signal.getsignal(number)):  # the user has reset it to SIG_DFL, which may end the process
        return
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(_main, number)  # the main thread itself: its system call ends, if it waits in one
    else:
        signal.raise_signal(number)


# Exceptions of handlers that are not put off.


class suppress(contextlib.suppress):
    """Like contextlib.suppress, but lets an exception pass that a signal handler has raised."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return bool(super().__exit__(kind, error, traceback)) and (error is None or raised_by_handler(error) is None)


def raised_by_handler(error: BaseException) -> BaseException | None:
    """Return `error`, or the one of its causes that a signal handler raised; None if there is none.

    A handler runs in the main thread, on top of the interrupted frame, so its frame is in the traceback. Without this,
    the TimeoutError of a handler would be taken for an error of the link.
    """
    found = _found(error)
    return None if found is None else found[0]


def has_broken_step(error: BaseException) -> bool:
    """Return whether a signal handler has raised this error in the middle of a step."""
    found = _found(error)
    if found is None:
        return False
    for frame in reversed(found[1]):  # not by `f_back`: these calls have ended
        if (is_step := _is_step(frame)) is not None:
            return is_step
    return in_step(found[1][0].f_back) if found[1] else False


def _found(error: BaseException) -> tuple[BaseException, list[FrameType]] | None:
    """Return the exception that a handler has raised, of an error and its causes, and the interrupted frames."""
    if threading.get_ident() != _main:
        return None
    codes = {_code(_signal.getsignal(number)) for number in _SIGNALS} - {None}
    cause: BaseException | None = error
    while cause is not None:
        trace = cause.__traceback__
        frames: list[FrameType] = []
        while trace is not None:
            if trace.tb_frame.f_code in codes:
                return cause, frames
            frames.append(trace.tb_frame)
            trace = trace.tb_next
        cause = cause.__cause__
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
