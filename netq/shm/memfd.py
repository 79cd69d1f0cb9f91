"""Memory that two processes share: a memfd, which has no name in a file system, with its size sealed.

The seals protect both sides: memory that cannot shrink raises no SIGBUS in a process that has it mapped. Memory in huge
pages is refused, because touching it raises SIGBUS when the system has no huge page left.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

from netq.errors import ProtocolError

_SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW (linux/fcntl.h)
_NOEXEC_SEAL = 0x8  # MFD_NOEXEC_SEAL (linux/memfd.h)


def make(size: int) -> int:
    """Return the descriptor of fresh memory, whose pages are provided on first use; raises OSError."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        fd = os.memfd_create("netq", flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # before Linux 6.3
            raise
        fd = os.memfd_create("netq", flags)
    try:
        os.ftruncate(fd, size)
        if strict():
            os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def inspect(fd: int) -> int:
    """Return the size of a peer's memory; raises ProtocolError unless it is sealed memory.

    A write to any other kind of file could block this process or end it.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError("the descriptor that the peer sent is no shared memory") from error
    if seals & _SEALS != _SEALS:
        raise ProtocolError(f"the peer's shared memory has the seals {seals:#x}; expected {_SEALS:#x}")
    block = os.fstatvfs(fd).f_bsize  # not st_blksize: transparent huge pages, which are harmless, change it
    if block != mmap.PAGESIZE:
        raise ProtocolError(f"the peer's shared memory has pages of {block} bytes; expected {mmap.PAGESIZE}")
    return os.fstat(fd).st_size


def strict() -> bool:
    """Return whether the system is in strict overcommit: then a process that touches a missing page is killed."""
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    except OSError:  # a container without /proc/sys; most systems are not strict
        return False
