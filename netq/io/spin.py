"""How long a thread that waits for shared memory looks into the ring before it sleeps. Knows nothing of netq.

As long as a wake-up costs: then a peer that answers within that time costs none, and one that answers later costs at
most twice as much as if the thread had slept at once ("competitive spinning": A. Karlin et al., SOSP 1991). A wake-up
takes some 10 µs on one machine and 100 on another, so it is measured, once for each process that uses shared memory.
"""

from __future__ import annotations

import functools
import os
import socket
import statistics
import threading
import time

_ROUNDS = 21
# Seconds: what another process needs for a small answer, also where wake-ups seem quick because the machine was busy
# when they were measured; and what would take too much from the other threads of the process.
_LEAST, _MOST = 50e-6, 300e-6
_DEFAULT = 50e-6  # seconds, where it cannot be measured


@functools.cache
def spin_time() -> float:
    """Return the seconds to spin; 0 on a machine with one core. The first call takes some milliseconds."""
    if (os.cpu_count() or 1) == 1:
        return 0.0
    return min(max(_wake_up_time(), _LEAST), _MOST)


def _wake_up_time() -> float:
    """Return the seconds from the system call that wakes a thread until that thread runs."""
    near, far = socket.socketpair()

    def answer() -> None:
        while data := far.recv(1):
            far.send(data)

    thread = threading.Thread(target=answer, name="netq-spin", daemon=True)
    with near, far:
        try:
            thread.start()
        except RuntimeError:
            return _DEFAULT
        seconds = [_round_trip(near) / 2 for _ in range(_ROUNDS)]
        near.shutdown(socket.SHUT_RDWR)
        thread.join()
    return statistics.median(seconds)


def _round_trip(sock: socket.socket) -> float:
    begin = time.perf_counter()
    sock.send(b"?")
    sock.recv(1)
    return time.perf_counter() - begin
