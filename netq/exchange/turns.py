"""Runs functions one at a time, in order, without ever letting a caller wait.

A thread that adds a function runs all that wait, unless another thread is at it: then that one runs the new function,
too. So code that the garbage collector or a signal handler runs on top of any other code may add functions: a lock that
it waited for could be held by a thread that waits for a lock of the interrupted code, such as a loop's baton
(netq/io/baton.py). What may wait, as a user's code, runs out of turn.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

from netq.io.locks import is_owned, let_go


class Turns:
    """Functions that run one at a time, in the order in which they were added."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._lock = threading.RLock()  # of the thread that runs them. Waited for in `held` only
        self._later = _Later()

    def add(self, function: Callable[[], object]) -> None:
        """Run a function, or let the thread run it that runs others now."""
        self._waiting.append(function)
        self._run()

    def add_later(self, function: Callable[[], object]) -> None:
        """Run a function, which may wait, in this thread: now, or when the turn that it runs is over."""
        self._later.functions.append(function)
        self._run_later()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the function that runs, run those that wait, and let all others wait meanwhile.

        For a thread that holds no other lock.
        """
        with self._lock:
            self._run_all()
            yield
        self._run()

    def _run(self) -> None:
        # Whether any wait is tested again after the release: a thread that has added one meanwhile has left it to this.
        # The lock is released if it is owned, as a signal handler may raise between any two steps.
        lock = self._lock
        while self._waiting and not is_owned(lock):
            try:
                try:
                    if not lock.acquire(blocking=False):
                        break
                    self._run_all()
                finally:
                    let_go(lock)
            except BaseException:
                let_go(lock)  # a signal handler may have raised in the `finally`
                raise
        self._run_later()

    def _run_all(self) -> None:
        while self._waiting:
            self._waiting.popleft()()

    def _run_later(self) -> None:
        # One of them that adds others leaves these to this loop, instead of running them on top of itself.
        # Whether any wait is tested again after that: a finalizer may have added one on top of the end of the loop.
        later = self._later
        while later.functions and not (later.is_running or is_owned(self._lock)):
            try:
                try:
                    later.is_running = True
                    while later.functions and not is_owned(self._lock):
                        later.functions.popleft()()
                finally:
                    later.is_running = False
            except BaseException:
                later.is_running = False  # as above
                raise


class _Later(threading.local):
    """What a thread is to run when it is out of its turn."""

    # Without __init__: a finalizer on top of that would find an object without attributes.
    is_running = False

    @property
    def functions(self) -> deque[Callable[[], object]]:
        made: deque[Callable[[], object]] = vars(self).setdefault("functions", deque())
        return made
