"""A serial executor without a thread of its own: runs functions one at a time, in order, and no caller waits.

A thread that adds a function runs all functions that wait. If another thread is running them, that one runs the new
function, too. So finalizers and signal handlers may add functions on top of any other code. If they waited for a lock,
its holder could wait for a lock of the interrupted code, such as a loop's baton (netq/io/baton.py). Functions that may
wait, as the user's code, are added with `add_later`, and run out of turn.
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
        self._lock = threading.RLock()  # held by the thread that runs them. Only `held` waits for it
        self._later = _Later()

    def add(self, function: Callable[[], object]) -> None:
        """Run a function in this thread; or in the thread that runs others now, after these."""
        self._waiting.append(function)
        self._run()

    def add_later(self, function: Callable[[], object]) -> None:
        """Run a function, which may wait, in this thread: now, or after the functions that it runs in turn."""
        self._later.functions.append(function)
        self._run_later()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Run the functions that wait, and have further ones wait until the end of the `with` block.

        Waits for a function that another thread runs. For a thread that holds no other lock.
        """
        with self._lock:
            self._run_all()
            yield
        self._run()

    def _run(self) -> None:
        # After the release the loop looks for functions again: another thread that has added one meanwhile relies on
        # that. The lock is released if it is owned, because a signal handler may raise between any two steps.
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
        # A function that adds others leaves them to this loop, and does not run them on top of itself. The outer loop
        # looks for functions again: a finalizer may have added one on top of the end of the inner loop.
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
    """The functions that a thread is to run out of turn."""

    # Without __init__: a finalizer on top of it would find an object without attributes.
    is_running = False

    @property
    def functions(self) -> deque[Callable[[], object]]:
        made: deque[Callable[[], object]] = vars(self).setdefault("functions", deque())
        return made
