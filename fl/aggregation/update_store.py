"""A round's updates on disk, for strategies that need all updates at once. They are read back block by block.

Used by fl/strategies/robust.py in the server's thread. The file has no name, so the system frees its space when the
process ends in any way. The file is read, not mapped: pages of a mapping count as resident memory of the process, and
an I/O error there raises a signal (SIGBUS) instead of an exception. Keeps no update in memory, and computes nothing.
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
from fl.tensors.spec import Model, Spec, specs_of

CELLS = 128 * 1024  # elements of a block, all updates together; measured from 64 Ki to 512 Ki: only 512 Ki is slower


class Stack(NamedTuple):
    """The same elements of one tensor of several updates, in C order."""

    name: str
    size: int  # of the whole tensor
    start: int
    stop: int
    matrix: NDArray[Any]  # [updates, stop - start]; owned by the receiver


class UpdateStore:
    """Stores a round's updates in a file without a name, in the precision of the computation; 64-bit integers exactly.

    folder: of the file; None: the system's folder for temporary files. It needs room for all updates of a round. On a
            file system in memory (tmpfs, as /tmp often is) that room is memory.

    Raises UpdateStoreError if no file can be made in the folder. One file descriptor is open from the first `add` to
    `reset`.
    """

    def __init__(self, like: Model, folder: str | os.PathLike[str] | None = None) -> None:
        self._specs = specs_of(like)
        sizes = [spec.size * _stored(spec).itemsize for spec in self._specs.values()]
        self._offsets = dict(zip(self._specs, itertools.accumulate([0, *sizes[:-1]]), strict=False))
        self._update_size = sum(sizes)  # bytes
        self._folder = tempfile.gettempdir() if folder is None else os.fspath(folder)
        self._scratch = Scratch()
        self._file: io.FileIO | None = None
        self._count = 0
        self._open().close()  # an unusable folder is reported before the clients train

    def __len__(self) -> int:
        return self._count

    def add(self, model: Model) -> None:
        """Append an update. Its arrays belong to the caller again when this returns.

        Raises InvalidUpdate for a model that `fl.tensors.model.check` refuses, and UpdateStoreError if the folder has
        no room; then the store is unchanged.
        """
        for name, source in sources(model, self._specs):
            check_finite(name, source, self._scratch)
        descriptor, end = self._descriptor(), self._count * self._update_size
        try:
            # A packed update decodes each tensor a second time here: keeping all of them would need a model of memory.
            for name, source in sources(model, self._specs):
                self._write(descriptor, source, end + self._offsets[name])
        except OSError as error:
            os.ftruncate(descriptor, end)
            raise self._full(error) from error
        self._count += 1

    def blocks(self, updates: Sequence[int] | None = None, *, exact: bool = True) -> Iterator[Stack]:
        """Yield the elements of the updates tensor by tensor, CELLS elements at a time, but one of each at least.

        updates: indices by order of arrival, which are also the order of the rows; None: all.
        exact:   whether to yield integer and bool tensors too.

        Raises UpdateStoreError if the file has lost data.
        """
        chosen = range(self._count) if updates is None else updates
        width = max(1, CELLS // max(1, len(chosen)))
        for name, spec in self._specs.items():
            for start in range(0, spec.size if exact or not spec.is_exact else 0, width):
                stop = min(start + width, spec.size)
                yield Stack(name, spec.size, start, stop, self._read(name, start, stop, chosen))

    def reset(self) -> None:
        """Delete all updates, and free the disk space."""
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
            left = np.ascontiguousarray(block, _stored(source.spec)).view(np.uint8).data
            while left:
                written = os.pwrite(descriptor, left, offset)
                left, offset = left[written:], offset + written

    def _full(self, error: OSError) -> UpdateStoreError:
        reason = f"folder {self._folder}: no room for an update of {self._update_size} bytes ({error.strerror})"
        others = f"{self._count} others of this round are there, of {self._count * self._update_size} bytes"
        return UpdateStoreError(error.errno, f"{reason}; {others}; make room, or name a folder that has it")

    def _read(self, name: str, start: int, stop: int, updates: Sequence[int]) -> NDArray[Any]:
        dtype = _stored(self._specs[name])
        matrix = np.empty((len(updates), stop - start), dtype)
        for row, update in zip(matrix, updates, strict=True):
            offset = update * self._update_size + self._offsets[name] + start * dtype.itemsize
            if os.preadv(self._descriptor(), [row], offset) != row.nbytes:
                raise UpdateStoreError(
                    errno.EIO, f"folder {self._folder}: the file ends before byte {offset + row.nbytes}"
                )
        return matrix


def _stored(spec: Spec) -> np.dtype[Any]:
    """Return the dtype of a tensor in the file, and of its stacks."""
    return np.dtype(spec.dtype) if spec.is_long else spec.accumulator
