"""What virtual clients keep from task to task: their state, local tensors, and what compression has left out.

Owned by fl/simulation/rounds.py; the workers make the bytes, and read them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from netq.errors import InvalidOption


class Kept:
    """Bytes by client, in memory, or in a folder: a file for each client. Raises InvalidOption if it is not empty."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._memory: dict[int, bytes] = {}
        self._folder = None if folder is None else Path(folder)
        self._in_folder: set[int] = set()
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                is_empty = not any(self._folder.iterdir())
            except OSError as error:
                raise InvalidOption(f"simulate.keep: {str(folder)!r}: {error.strerror}; expected a folder") from error
            if not is_empty:
                raise InvalidOption(f"simulate.keep: {str(folder)!r} is not empty; expected a new folder")

    def of(self, clients: Iterable[int]) -> dict[int, bytes]:
        """Return what some clients keep, of those that keep something."""
        if self._folder is not None:
            return {each: (self._folder / str(each)).read_bytes() for each in clients if each in self._in_folder}
        return {each: self._memory[each] for each in clients if each in self._memory} if self._memory else {}

    def update(self, kept: Mapping[int, bytes]) -> None:
        """Keep what a chunk's clients keep from now on. Empty: nothing."""
        for client, data in kept.items():
            if self._folder is None:
                self._memory[client] = data
            else:
                self._in_folder.add(client)
                (self._folder / str(client)).write_bytes(data)
