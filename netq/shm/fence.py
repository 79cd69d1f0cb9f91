"""A memory fence made of the standard library, for two processes that share memory.

Other processors may see a store late: after later loads of the same program (on x86, too), and in another order (on
ARM). Python has no fence, but its locks contain one. To release a held lock and acquire it again is, in CPython on
Linux:

- up to 3.12 two operations on a POSIX semaphore: an atomic release, then an atomic acquire;
- from 3.13 on, two sequentially consistent exchanges of a byte.

On x86-64 each of these is a locked instruction, which is a full fence. On 64-bit ARM a release and a following acquire
keep their order (they are "RCsc"): nothing from before moves behind the release, and nothing from after moves before
the acquire. (With acquire first and release second, both could move in between.) No other thread uses the lock, so the
fence never waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


def make_fence() -> Callable[[], None]:
    """Return a fence for one thread at a time."""
    lock = threading.Lock()
    lock.acquire()
    release, acquire = lock.release, lock.acquire

    def fence() -> None:
        release()
        acquire()

    return fence
