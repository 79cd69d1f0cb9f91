"""A round's updates on disk, for strategies that need all of them at once; they come back block by block.

Made, filled and emptied by a strategy (fl/strategies/robust.py) in the server's thread. The file has no name: when the
process ends, however it ends, the system frees its space. It is read and not mapped: what was read of a mapping stays
in the process's resident memory, and an error of the disk would be a signal there, not an exception. Never keeps an
update in memory, never computes with one.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl.errors import UpdateStoreError
from fl.tensors.blocks import Scratch, Source, check_finite, sources
from fl.tensors.spec import Model, specs_of

CELLS = 128 * 1024  # elements in a block, of all updates together; of 64 Ki to 512 Ki only the last is slower


class Stack(NamedTuple):
    """The same elements of one tensor, in C order, of several updates."""

    name: str
    size: int  # of the whole tensor
    start: int
    stop: int
    matrix: NDArray[Any]  # [updates, stop - start] in the precision that is computed with; the receiver's own


class UpdateStore:
    """Keeps a round's updates in a file without a name, in the precision that is computed with.

    `folder`: where; None: the system's folder for temporary files. It needs room for all updates of a round, and if it
    is a file system in memory (tmpfs, as /tmp often is), that room is memory. Raises UpdateStoreError if no file can
    be made there. Between the first `add` and `reset`, one file descriptor is open.
    """

    def __init__(self, like: Model, folder: str | os.PathLike[str] | None = None) -> None:
        self._specs = specs_of(like)
        sizes = [spec.size * spec.accumulator.itemsize for spec in self._specs.values()]
        self._offsets = dict(zip(self._specs, itertools.accumulate([0, *sizes[:-1]]), strict=False))
        self._update = sum(sizes)  # bytes
        self._folder = tempfile.gettempdir() if folder is None else os.fspath(folder)
        self._scratch = Scratch()
        self._file: io.FileIO | None = None
        self._count = 0
        self._open().close()  # if that cannot be, it is better known before the clients train

    def __len__(self) -> int:
        return self._count

    def add(self, model: Model) -> None:
        """Append an update. It is the caller's again when this returns.

        Raises InvalidUpdate for what `fl.tensors.model.check` refuses, and UpdateStoreError if the folder has no room
        for it; then nothing has changed.
        """
        for name, source in sources(model, self._specs):
            check_finite(name, source, self._scratch)
        descriptor, end = self._descriptor(), self._count * self._update
        try:
            for name, source in sources(model, self._specs):  # again: a packed update makes each when it is asked for
                self._write(descriptor, source, end + self._offsets[name])
        except OSError as error:
            os.ftruncate(descriptor, end)
            raise self._full(error) from error
        self._count += 1

    def blocks(self, updates: Sequence[int] | None = None, *, exact: bool = True) -> Iterator[Stack]:
        """Yield tensor by tensor all elements of the updates, or of some of them by order of arrival, in that order.

        No more than CELLS elements at a time (one of each update at least). Of whole numbers and bools only if `exact`.
        Raises UpdateStoreError if the disk does not give back what it was given.
        """
        chosen = range(self._count) if updates is None else updates
        width = max(1, CELLS // max(1, len(chosen)))
        for name, spec in self._specs.items():
            for start in range(0, spec.size if exact or not spec.is_exact else 0, width):
                stop = min(start + width, spec.size)
                yield Stack(name, spec.size, start, stop, self._read(name, start, stop, chosen))

    def reset(self) -> None:
        """Forget all updates, and give the disk back."""
        self._count = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def _descriptor(self) -> int:
        if self._file is None:
            self._file = self._open()
        return self._file.fileno()

    def _open(self) -> io.FileIO:
        try:
            return tempfile.TemporaryFile(buffering=0, dir=self._folder)
        except OSError as error:
            reason = f"folder {self._folder}: no file can be made there ({error.strerror})"
            raise UpdateStoreError(
                error.errno, f"{reason}; expected a folder that this process may write to"
            ) from error

    def _write(self, descriptor: int, source: Source, offset: int) -> None:
        for block in source.blocks(self._scratch):
            left = np.ascontiguousarray(block, source.spec.accumulator).view(np.uint8).data
            while left:
                written = os.pwrite(descriptor, left, offset)
                left, offset = left[written:], offset + written

    def _full(self, error: OSError) -> UpdateStoreError:
        reason = f"folder {self._folder}: no room for an update of {self._update} bytes ({error.strerror})"
        others = f"{self._count} others of this round are there, of {self._count * self._update} bytes"
        return UpdateStoreError(error.errno, f"{reason}; {others}; make room, or name a folder that has it")

    def _read(self, name: str, start: int, stop: int, updates: Sequence[int]) -> NDArray[Any]:
        dtype = self._specs[name].accumulator
        matrix = np.empty((len(updates), stop - start), dtype)
        for row, update in zip(matrix, updates, strict=True):
            offset = update * self._update + self._offsets[name] + start * dtype.itemsize
            if os.preadv(self._descriptor(), [row], offset) != row.nbytes:
                raise UpdateStoreError(
                    errno.EIO, f"folder {self._folder}: the file ends before byte {offset + row.nbytes}"
                )
        return matrix
