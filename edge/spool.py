"""Keeps the record of the last update, in memory or in a folder where it survives a restart and a loss of power.

Owned by edge/agent.py, in its thread. With a folder, a record is written to `record.new`, synchronised to the disk, and
then renamed to `record`: whenever the device stops, one whole record is there, the last one or the one before. A record
that is damaged is dropped when the agent starts. If the disk is full or fails, records stay in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from edge.record import Damaged, Record
from netq.errors import InvalidOption
from netq.utils.files import open_regular

log = logging.getLogger("edge")


class Spool:
    """The record of the last update. A context manager.

    folder: None: records stay in memory, and do not survive the agent.

    Raises InvalidOption if the folder cannot be written to, or if another agent uses it.
    """

    def __init__(self, folder: Path | None) -> None:
        self.last: Record | None = None
        self._folder = folder
        self._fd: int | None = None  # of the last record
        self._warned = False  # of the disk, since it worked last
        if folder is not None:
            self._lock = _locked(folder)
            self._load()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the files. Views of records stay valid."""
        self._replace(None, None)
        if self._folder is not None:
            os.close(self._lock)

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
        if self._folder is not None:
            try:
                if not os.fstat(fd).st_nlink:  # it is in memory
                    raise OSError(0, "the disk may be full")
                os.fsync(fd)
                os.replace(self._folder / "record.new", self._folder / "record")
                _sync(self._folder)
                self._warned = False
            except OSError as error:
                self._warn(error)
                with contextlib.suppress(OSError):  # half a record takes space
                    (self._folder / "record.new").unlink()
        self._replace(record, os.dup(fd))

    def _load(self) -> None:
        assert self._folder is not None
        path = self._folder / "record"
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
            path.unlink(missing_ok=True)

    def _fresh(self) -> int:
        if self._folder is not None:
            path = self._folder / "record.new"
            try:
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
    """Return the descriptor of the lock file, which excludes another agent."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        fd = open_regular(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        raise InvalidOption(
            f"client.state: {str(folder)!r} cannot be written to ({error.strerror}); expected a folder of this user"
        ) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise InvalidOption(
            f"client.state: {str(folder)!r} is in use by another agent; give each agent a folder of its own"
        ) from None
    return fd


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
