"""How long a thread that waits for shared memory looks into the rings before it sleeps. Knows nothing of netq.

A peer that answers while this side spins costs neither of the two a wake-up, which takes 10 µs on one machine and 100
on another. So the time adapts to the waits, as that of a virtual processor in KVM does (Linux documentation, "Guest
halt polling"): it grows while waits end soon after the thread has gone to sleep, and shrinks after long ones.
"""

from __future__ import annotations

import os

_LEAST, _MOST = 50e-6, 400e-6  # seconds. Two changes of threads and the work of a peer in Python take less than _MOST


def spin_seconds(seconds: float) -> float:
    """Return so many seconds, or 0 on a machine with one core, where the peer could not answer."""
    return seconds if (os.cpu_count() or 1) > 1 else 0.0


class SpinTime:
    """`seconds` is the time for the next wait: see `spin_seconds`."""

    def __init__(self) -> None:
        self.seconds = spin_seconds(_LEAST)

    def record(self, waited: float) -> None:
        """Adapt to a wait of so many seconds, which has lasted longer than its spin."""
        if self.seconds:
            self.seconds = min(2 * self.seconds, _MOST) if waited < _MOST else max(self.seconds / 2, _LEAST)
