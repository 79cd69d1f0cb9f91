"""Memory that two processes share: a descriptor without a name in any file system, whose size is sealed.

The seals are why neither side can harm the other: memory that cannot shrink gives no SIGBUS to whoever has mapped it.
But huge pages do, where none is left when they are touched: they are refused.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
from pathlib import Path

from netq.errors import ProtocolError

_SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW (linux/fcntl.h)
_NOEXEC_SEAL = 0x8  # MFD_NOEXEC_SEAL (linux/memfd.h)


def make(size: int) -> int:
    """Return the descriptor of fresh memory, whose pages come as they are used; raises OSError."""
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
    """Return the size of a peer's memory; raises ProtocolError unless it is memory and sealed.

    Any other kind of file could make whoever writes to it wait, or die.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise ProtocolError("the descriptor that the peer sent is no shared memory") from error
    if seals & _SEALS != _SEALS:
        raise ProtocolError(f"the peer's shared memory has the seals {seals:#x}; expected {_SEALS:#x}")
    block = os.fstatvfs(fd).f_bsize  # and not st_blksize, which transparent huge pages change: those are harmless
    if block != mmap.PAGESIZE:
        raise ProtocolError(f"the peer's shared memory has pages of {block} bytes; expected {mmap.PAGESIZE}")
    return os.fstat(fd).st_size


def scarce(fd: int) -> bool:
    """Return whether this descriptor's number, the lowest that was free, says that half of all are in use."""
    return fd >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2


def strict() -> bool:
    """Return whether the system counts each page before it is used: then one that is not to be had kills its user."""
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    except OSError:  # a container without /proc/sys: as most systems are
        return False
