"""Writes the history of a run to a file as it happens, and counts. Any thread may record events.

Made by tests/soak/run.py; called by lives, by the nemesis, and through netq's log. It keeps no events, because the run
measures memory.
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

from netq.testing.log import LogHandler
from tests.soak.history import Event, Key, What

# Lines of netq's log about a violation of the protocol or a bug in a loop. Between two netq peers there are none.
_BUG = re.compile(r"lane \d+:|in state [A-Z]+|goes on with|internal error|event function failed|FIN with code")


class Recorder(LogHandler):
    """Records messages, and netq's log within a with statement."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self.counts: Counter[What] = Counter()
        self.bytes = 0  # delivered
        self.errors: list[str] = []  # errors that the history of messages does not show
        self._begin = time.monotonic()
        self._changed = threading.Condition()
        self._file = path.open("w", encoding="utf-8")

    @property
    def time(self) -> float:
        """Seconds since the beginning of the run."""
        return time.monotonic() - self._begin

    def record(self, what: What, key: Key, size: int = 0, note: str = "") -> None:
        """Record an event of a message."""
        with self._changed:
            self._file.write(Event(self.time, what, key, size, note).line() + "\n")
            self.counts[what] += 1
            self.bytes += size if what is What.DELIVERED else 0
            if not self._open():
                self._changed.notify_all()

    def note(self, what: str, text: str) -> None:
        """Record a line that helps to understand the others."""
        with self._changed:
            self._write(what, text)

    def error(self, text: str) -> None:
        """Record an error that is not about one message."""
        with self._changed:
            self._write("error", text)
            self.errors.append(f"{self.time:.3f}: {text}")

    def emit(self, record: logging.LogRecord) -> None:
        """Record a line of netq's log."""
        text = record.getMessage()
        with self._changed:
            self._write(record.levelname.lower(), text)
        if record.levelno >= logging.ERROR or _BUG.search(text):
            self.error(f"netq's log: {text}{f': {record.exc_info[1]!r}' if record.exc_info else ''}")

    def settle(self, timeout: float) -> bool:
        """Wait until each message is acknowledged, failed or cancelled; return whether that happened in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open(), timeout)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._file.close()

    def _open(self) -> int:
        return self.counts[What.PUT] - sum([self.counts[what] for what in (What.ACKED, What.FAILED, What.CANCELLED)])

    def _write(self, what: str, text: str) -> None:
        self._file.write(json.dumps({"time": round(self.time, 4), "what": what, "text": text}) + "\n")
