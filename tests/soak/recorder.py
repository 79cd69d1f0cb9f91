"""Writes the history of a run to a file as it happens, and counts. Any thread may tell it anything.

Made by tests/soak/run.py; told by lives, by the nemesis, and by netq's log. Keeps no event: memory is one of the
things that a run measures.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.soak.history import Event, Key, What

# What netq says when a peer has broken the protocol, or a loop has ended by a bug: between two of ours, never.
_ALARMING = re.compile(r"lane \d+:|in state [A-Z]+|goes on with|internal error|event function failed|FIN with code")


class Recorder(logging.Handler):
    """Listens to netq's log too, within a with statement."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self.counts: Counter[What] = Counter()
        self.bytes = 0  # delivered
        self.troubles: list[str] = []  # what no history of messages can tell
        self._begin = time.monotonic()
        self._changed = threading.Condition()
        self._file = path.open("w", encoding="utf-8")
        self._logger = logging.getLogger("netq")
        self._level = self._logger.level

    @property
    def time(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begin

    def happened(self, what: What, key: Key, size: int = 0, note: str = "") -> None:
        """Write down what happened to a message."""
        with self._changed:
            self._file.write(Event(self.time, what, key, size, note).line() + "\n")
            self.counts[what] += 1
            self.bytes += size if what is What.DELIVERED else 0
            if not self._open():
                self._changed.notify_all()

    def note(self, what: str, text: str) -> None:
        """Write down what helps to understand the rest."""
        with self._changed:
            self._write(what, text)

    def trouble(self, text: str) -> None:
        """Write down what must not happen, and is about no message."""
        with self._changed:
            self._write("trouble", text)
            self.troubles.append(f"{self.time:.3f}: {text}")

    def emit(self, record: logging.LogRecord) -> None:
        """Write down a line of netq's log."""
        text = record.getMessage()
        with self._changed:
            self._write(record.levelname.lower(), text)
        if record.levelno >= logging.ERROR or _ALARMING.search(text):
            self.trouble(f"netq's log: {text}{f': {record.exc_info[1]!r}' if record.exc_info else ''}")

    def settle(self, timeout: float) -> bool:
        """Wait until each message that was put is acknowledged, failed or cancelled; return whether it is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open(), timeout)

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._logger.setLevel(self._level)
        self._logger.removeHandler(self)
        self._file.close()

    def _open(self) -> int:
        return self.counts[What.PUT] - sum([self.counts[what] for what in (What.ACKED, What.FAILED, What.CANCELLED)])

    def _write(self, what: str, text: str) -> None:
        self._file.write(json.dumps({"time": round(self.time, 4), "what": what, "text": text}) + "\n")
