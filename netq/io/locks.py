"""Reentrant locks, as code uses them that a signal handler or a finalizer may interrupt between any two steps."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

is_owned: Callable[[Any], bool] = operator.methodcaller("_is_owned")  # whether this thread has an RLock


def let_go(lock: Any) -> None:
    """Release an RLock that this thread may own: a handler may have raised after `acquire`, or before `release`."""
    if is_owned(lock):
        lock.release()
