"""Records what netq logs, for tests that wait for a line. Any thread may log and wait."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Self

from netq.log import thread as log_thread

_LIMIT = 60.0  # seconds


class LogHandler(logging.Handler):
    """Handles the lines of a logger, netq's by default, from its level on, within a with statement."""

    def __init__(self, level: int, name: str = "netq") -> None:
        super().__init__(level)
        self._logger = logging.getLogger(name)
        self._level_before = self._logger.level

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        self._logger.setLevel(self.level)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._logger.setLevel(self._level_before)
        self._logger.removeHandler(self)


class LogRecorder(LogHandler):
    """Records the lines of a logger, netq's by default, within a with statement."""

    def __init__(self, name: str = "netq") -> None:
        super().__init__(logging.DEBUG, name)
        self._lines: list[tuple[int, str]] = []
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        """Record a line."""
        with self._changed:
            self._lines.append((record.levelno, record.getMessage()))
            self._changed.notify_all()

    def having(self, text: str, level: int = logging.DEBUG) -> list[str]:
        """Return the lines so far that contain `text`, of this level at least."""
        log_thread.flush(_LIMIT)
        return self._having(text, level)

    def wait(self, text: str, count: int = 1) -> str:
        """Wait until `count` lines contain `text`; return the last of these."""
        with self._changed:
            found = self._changed.wait_for(lambda: len(self._having(text)) >= count, _LIMIT)
            assert found, f"{text!r} is not {count} times in the log: {self._lines}"
            return self._having(text)[count - 1]

    def _having(self, text: str, level: int = logging.DEBUG) -> list[str]:
        with self._changed:
            return [line for of, line in self._lines if of >= level and text in line]
