"""Keeps the record of the last update, in memory or in a folder where it survives a restart and a loss of power.

Owned by edge/agent.py, in its thread. With a folder, a record is written to `record.new`, synchronised to the disk, and
then renamed to `record`: whenever the device stops, one whole record is there, the last one or the one before. A record
that is damaged is dropped when the agent starts, and so is half a record. If the disk is full, read-only or fails, at
the start or later, records stay in memory; each next one is tried on the disk again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from edge.record import Damaged, Record
from netq.errors import NotNow
from netq.utils.files import open_regular, sync

log = logging.getLogger("edge")


class Spool:
    """The record of the last update. A context manager.

    folder: None: records stay in memory, and do not survive the agent.

    Raises NotNow if another agent uses the folder, and if the folder around it is not there: a disk that comes later
    may have the last record.
    """

    def __init__(self, folder: Path | None) -> None:
        self.last: Record | None = None
        self._folder = folder
        self._fd: int | None = None  # of the last record
        self._lock: int | None = None  # of the folder; None: the folder cannot be used
        self._warned = False  # of the disk, since it worked last
        if folder is not None:
            self._begin(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the files. Views of records stay valid."""
        self._replace(None, None)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextmanager
    def fresh(self) -> Iterator[int]:
        """Return the descriptor of an empty file for the next record; it is closed at the end of the `with` block.

        The file is one of the folder, or memory if that does not work.
        """
        fd = self._fresh()
        try:
            yield fd
        finally:
            os.close(fd)

    @property
    def state(self) -> int | None:
        """The descriptor of the file with the last state; None if there is none."""
        return self._fd if self.last is not None and self.last.state.nbytes else None

    def keep(self, fd: int, record: Record) -> None:
        """Make a record, in a file of `fresh` or in memory, the last one. Waits for the disk.

        Keeps it in memory, with one warning, if the disk fails.
        """
        if self._folder is not None and self._lock is not None:
            try:
                self._store(self._folder, fd)
            except OSError as error:
                self._warn(error)
                _remove(self._folder / "record.new")
        self._replace(record, os.dup(fd))

    def _store(self, folder: Path, fd: int) -> None:
        if not os.fstat(fd).st_nlink:  # it is in memory
            raise OSError(0, "the disk may be full")
        os.fsync(fd)
        os.replace(folder / "record.new", folder / "record")
        sync(folder)
        if self._warned:
            self._warned = False
            log.warning("%s: can be written again: the last update is stored", folder)

    def _begin(self, folder: Path) -> None:
        """Begin to use the folder. Raises NotNow; a disk that fails is no error."""
        try:
            self._open(folder)
        except BlockingIOError:
            text = "is in use by another agent; give each agent a folder of its own"
            raise NotNow(f"client.state: {str(folder)!r} {text}") from None
        except FileNotFoundError:
            text = f"there is no folder {str(folder.parent)!r}: make it"
            raise NotNow(f"client.state: {str(folder)!r}; {text}") from None
        except OSError as error:
            self._warn(error)

    def _open(self, folder: Path) -> None:
        """Lock the folder, remove what a kill has left, and go on from the record there, unless there is a newer one.

        Raises OSError; a BlockingIOError if another agent uses the folder.
        """
        self._lock = _locked(folder)
        _remove(folder / "record.new")
        if self.last is None:
            self._load(folder / "record")

    def _load(self, path: Path) -> None:
        try:
            fd = open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        except OSError as error:
            log.error("%s: cannot be read (%s): going on without the last update", path, error.strerror)
            return
        try:
            self._replace(Record.read(fd, check=True), fd)
        except (Damaged, OSError) as error:
            os.close(fd)
            log.error("%s: is no whole update, and is dropped: %s", path, str(error))
            _remove(path)

    def _fresh(self) -> int:
        if self._folder is not None:
            path = self._folder / "record.new"
            try:
                if self._lock is None:
                    self._open(self._folder)
                path.unlink(missing_ok=True)
                return open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
            except OSError as error:
                self._warn(error)
        return os.memfd_create("netq-edge", os.MFD_CLOEXEC)

    def _replace(self, record: Record | None, fd: int | None) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self.last, self._fd = record, fd

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            text = "%s: cannot be written (%s): updates stay in memory; a restart goes on from the last stored one"
            log.warning(text, self._folder, error.strerror)


def _locked(folder: Path) -> int:
    """Return the descriptor of the lock file, which excludes another agent. Raises OSError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "lock"
    try:
        fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.EROFS or not path.exists():
            raise
        fd = open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)  # it is of the agent before: there may be a record, too
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise BlockingIOError(errno.EAGAIN, "another agent uses it") from None
    except OSError:
        os.close(fd)
        raise
    return fd


def _remove(path: Path) -> None:
    """Remove a file that takes space, if it is there and the disk can be written."""
    with contextlib.suppress(OSError):
        path.unlink()
