"""A condition variable without a lock, which signal handlers may use and interrupt at any point.

A signal handler runs on top of whatever the main thread does. If it waited for a thread that in turn waits for a lock
of the interrupted code, both would wait forever. So nothing is locked here. And a signal that comes just before a wait
begins is handled only when the wait ends, so no single wait is long.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable

from netq.io.interrupts import interruptible

LONGEST = 1.0  # seconds of one wait, after which signals are handled


def bounded(timeout: float | None) -> float | None:
    """Return a timeout that the standard library takes: None for one that is infinite, or of more than 292 years."""
    return None if timeout is None or timeout > threading.TIMEOUT_MAX else timeout


def deadline_of(timeout: float | None) -> float:
    """Return the time.monotonic() at which a timeout is over; infinity if it never is."""
    return math.inf if (seconds := bounded(timeout)) is None else time.monotonic() + seconds


class Condition:
    """Wakes threads that wait for a predicate. Any thread may wait and notify."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[queue.SimpleQueue[None]] = []

    def notify(self) -> None:
        """Make all waiting threads test their predicates again. Never waits."""
        # A list display: tuple() and copy() of CPython 3.11 may read beyond the end of a list that shrinks meanwhile.
        for waiter in [*self._waiters]:
            waiter.put(None)

    def wait(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `predicate()`, for `timeout` seconds at most; return whether it came true."""
        if predicate():
            return True
        deadline = deadline_of(timeout)
        # The predicate is tested again after the append. What came true between the first test and the append found no
        # waiter to notify; what comes true later puts an item into the queue, which `get` finds at once. SimpleQueue is
        # the one queue of the standard library whose `put` a signal handler may call on top of any of its methods.
        waiter: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._waiters.append(waiter)
        try:
            return _wait_until(predicate, waiter, deadline)
        finally:
            self._waiters.remove(waiter)


def _wait_until(predicate: Callable[[], bool], waiter: queue.SimpleQueue[None], deadline: float) -> bool:
    while not predicate():
        left = min(deadline - time.monotonic(), LONGEST)
        if left <= 0:
            return False
        _sleep(waiter, left)
    return True


@interruptible
def _sleep(waiter: queue.SimpleQueue[None], seconds: float) -> None:
    with contextlib.suppress(queue.Empty):
        waiter.get(timeout=seconds)
