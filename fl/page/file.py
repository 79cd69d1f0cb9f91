"""The rounds of a file of fl.JsonLines as the source of a page: `fl page`. Follows a file that grows."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl.callbacks import jsonl
from fl.page.history import History

_LOOK = 1.0  # seconds between looks at the file


class FileSource:
    """Fills a History from a file, and again when the file changes. Raises OSError and ValueError as `jsonl.read`."""

    def __init__(self, path: str | os.PathLike[str], history: History) -> None:
        self._path = Path(path)
        self._history = history
        self._seen = self._state()
        self._read()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fl-page-file", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_LOOK):
            state = self._state()
            if state is not None and state != self._seen:
                self._seen = state
                try:
                    self._read()
                except (OSError, ValueError) as error:  # a file that is just moved: the rounds that are known stay
                    self._history.log("warning", str(error), time.time())

    def _state(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    def _read(self) -> None:
        rounds = jsonl.read(self._path)
        self._history.replace(_details(self._path), [(each, float(each.get("time") or 0.0)) for each in rounds])


def _details(path: Path) -> Mapping[str, Any]:
    """Return those of the last server that has written to the file."""
    found: Mapping[str, Any] = {}
    for line in path.read_bytes().splitlines():
        if line.startswith(b'{"time"') and b'"begin"' in line[:60]:
            try:
                begin = json.loads(line).get("begin")
            except ValueError:
                continue
            found = begin if isinstance(begin, dict) else found
    return found
