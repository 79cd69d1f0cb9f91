"""Opens files by names that other users of the machine may know: regular files only, and new ones by no link.

Called by netq/toml_file.py, edge/spool.py, and by all of fl that writes a whole file. A pipe would block its reader
for ever, and a link in a folder that others may write to would lead a write of ours into a file of their choice.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path, flags: int, mode: int = 0o600) -> int:
    """Return a descriptor of a regular file; with `os.O_CREAT` in `flags`, of a new one with the permissions `mode`.

    Raises OSError, also for a pipe or a device, and with `os.O_NOFOLLOW` for a link.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)  # a pipe's `open` would wait
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link, which is not followed here", str(path)) from None
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "a pipe or a device", str(path))


def read_regular(path: Path) -> bytes:
    """Return the bytes of a regular file. Follows links. Raises OSError."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read()


def create(path: Path, mode: int = 0o600) -> BinaryIO:
    """Make a file for writing, in place of an earlier one of this name. Follows no link. Raises OSError."""
    path.unlink(missing_ok=True)  # left by a process that was killed
    return os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb")


@contextmanager
def replacing(path: Path, mode: int = 0o600, *, keep: Path | None = None) -> Iterator[BinaryIO]:
    """Open a file for writing, which takes the place of `path` when the block ends. Raises OSError.

    It is written as `….new`, synchronised to the disk and renamed. So `path` is whole whenever the machine stops, and
    unchanged if the block raises or the disk is full; `….new`, which takes space, is then removed.

    keep: the name that the file before gets.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        with create(new, mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            path.replace(keep)
        new.replace(path)
    except BaseException as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a write knows its descriptor only
            error.filename = str(path)
        raise
    sync(path.parent)


def sync(folder: Path) -> None:
    """Synchronise a folder to the disk, so that a rename survives a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
