"""Calls functions when the process ends, in whichever way it does. Knows nothing of netq.

    the interpreter ends                     other threads have ended ──► functions of atexit
    a child of multiprocessing, by fork,     other threads have ended ──► os._exit
    before Python 3.13

Python itself calls `threading._shutdown` in both cases, which waits for all threads that are no daemons. So in the
second case a thread is started there that waits for the others, and then calls the functions. A plain os._exit, and a
signal without a handler, call none of them.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
from collections.abc import Callable

Function = Callable[[], object]

_functions: dict[Function, None] = {}  # the newest last


def at_end(function: Function) -> None:
    """Call a function at the end of the process; the newest first."""
    _functions[function] = None
    atexit.register(function)


def not_at_end(function: Function) -> None:
    """Do not call it. Harmless if it was not to be called. Never waits."""
    _functions.pop(function, None)
    atexit.unregister(function)


def _skips_atexit() -> bool:
    """Return whether this is a child of multiprocessing that ends by os._exit."""
    multiprocessing = sys.modules.get("multiprocessing")
    return (
        multiprocessing is not None
        and multiprocessing.parent_process() is not None
        and multiprocessing.get_start_method() != "spawn"
    )


def _call_after_threads() -> None:
    if _skips_atexit():
        threading.Thread(target=_call_all, name="netq-end").start()


def _call_all() -> None:
    while others := [thread for thread in threading.enumerate() if _is_waited_for(thread)]:
        others[0].join()
    _call_rest()


def _call_rest() -> None:
    with contextlib.ExitStack() as stack:  # calls all, also after an exception
        for function in list(_functions):
            stack.callback(function)


def _is_waited_for(thread: threading.Thread) -> bool:
    return thread.is_alive() and not thread.daemon and thread is not threading.current_thread()


atexit.register(_call_rest)  # for what a function of atexit has registered: Python calls that no more
if sys.version_info < (3, 13):
    try:
        threading._register_atexit(_call_after_threads)  # type: ignore[attr-defined]  # called by threading._shutdown
    except RuntimeError:  # the main thread has ended, and another one imports this
        _call_after_threads()
