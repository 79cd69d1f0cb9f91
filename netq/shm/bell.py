"""The bell on which a reader sleeps: an eventfd that the other side rings by a read, which cannot block.

A write to an eventfd blocks when its counter is full, and a peer can see to that: it shares the open file, so it may
fill the counter and clear O_NONBLOCK. A read has a flag of its own call, RWF_NOWAIT, which the peer cannot change. So
the counter starts high, each ring takes 1 from it, and the reader watches for the edges that a read causes (EPOLLOUT).
An eventfd takes the flag since Linux 5.8.
"""

from __future__ import annotations

import os
import select

from netq.io.interrupts import suppress

_RINGS = 2**63  # more than can be rung

EDGES = (select.EPOLLOUT | select.EPOLLET) if hasattr(select, "epoll") else 0  # each ring is one event


def make() -> int:
    """Return the descriptor of a new bell; raises OSError."""
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
    os.eventfd_write(fd, _RINGS)
    return fd


def ring(fd: int) -> None:
    """Wake the reader that sleeps on this bell. Never waits."""
    with suppress(BlockingIOError):  # a hostile peer has emptied the counter, and is not served
        os.preadv(fd, [bytearray(8)], -1, os.RWF_NOWAIT)


def is_bell(fd: int) -> bool:
    """Return whether this is an eventfd: nothing may be read from any other kind of file of the peer."""
    return os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventfd]"
