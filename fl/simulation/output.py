"""What a simulation prints: a line a round, and what clients print, in whole lines with the client's name.

`Lines` stands for stdout in a worker process: several processes write to one terminal or notebook, word by word.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any, TextIO

from fl.callbacks.base import Callback
from fl.callbacks.progress import Progress
from fl.report import RoundReport
from fl.tensors.spec import Model

_LONGEST = 8192  # characters of a line: a longer one comes in pieces


class Lines:
    """A text stream that writes whole lines, each after the name of the thread that prints it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        self._begun: dict[str, str] = {}  # what a thread has printed of a line, by its name

    def write(self, text: str) -> int:
        """Take a text. Print the lines that it ends."""
        name = threading.current_thread().name
        with self._lock:
            lines = (self._begun.pop(name, "") + text).splitlines(keepends=True)
            if lines and not lines[-1].endswith(("\n", "\r")) and len(lines[-1]) < _LONGEST:
                self._begun[name] = lines.pop()
            if lines:
                self._stream.write("".join(f"{name} | {line.rstrip()}\n" for line in lines))
                self._stream.flush()
        return len(text)

    def finish(self) -> None:
        """Print what has no end."""
        with self._lock:
            left, self._begun = self._begun, {}
            self._stream.write("".join(f"{name} | {text}\n" for name, text in left.items()))
            self._stream.flush()

    def flush(self) -> None:
        """Do nothing: a line that has not ended waits."""

    def writelines(self, lines: Iterable[str]) -> None:
        """Take texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class RoundLines(Callback):
    """Prints the report of each round to stderr."""

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Print it."""
        print(report, file=sys.stderr, flush=True)


def shown(progress: bool | None, callbacks: Iterable[Callback]) -> list[Callback]:
    """Return what shows the rounds of a simulation: nothing, if another callback does.

    progress: None: where people read stderr, in a terminal or a notebook.
    """
    if progress is None:
        progress = (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules
    return [RoundLines()] if progress and not any(isinstance(each, Progress) for each in callbacks) else []
