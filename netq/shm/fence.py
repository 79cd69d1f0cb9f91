"""A memory fence out of the standard library, for two processes that share memory.

What a processor has stored it may show to others late: after it has loaded what comes later in the program (x86
too), and in another order (ARM). Python has no fence, but its locks contain one. Releasing a lock that we hold and
acquiring it again is, in CPython on Linux:

- up to 3.12 two operations on a POSIX semaphore: an atomic release, then an atomic acquire;
- from 3.13 on, two sequentially consistent exchanges of a byte.

On x86-64 each of them is a locked instruction, which is a full fence. On 64-bit ARM a release that an acquire follows
keeps its order (they are "RCsc"): nothing from before moves behind the first, nothing from after moves before the
second. (The other way round, acquire then release, both could move in between.) Nobody else has this lock, so nothing
ever waits.
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
