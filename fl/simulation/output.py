"""What a simulation prints: a line a round, and what clients print, in whole lines with the client's name.

`Lines` stands for stdout in a worker process: several processes write to one terminal or notebook, word by word.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from fl.callbacks.base import Callback, ClientState
from fl.callbacks.progress import Progress
from fl.report import RoundReport
from fl.tensors.spec import Model

_DRAWING = 0.5  # seconds between two drawings of how far a round has come
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
    """Prints the report of each round to stderr. While a round takes long, its last line says how far it has come."""

    def __init__(self) -> None:
        self._number = self._asked = self._answered = 0
        self._begin = self._drawn = 0.0  # by time.monotonic(): the round, and the last drawing
        self._width = 0  # characters of the line that says how far it has come

    def round_begins(self, number: int, clients: Sequence[uuid.UUID]) -> None:
        """Count anew."""
        self._number, self._asked, self._answered = number, 0, 0
        self._begin = self._drawn = time.monotonic()

    def client_is(self, client: uuid.UUID, state: ClientState, size: int) -> None:
        """Count, and draw now and then."""
        self._asked += state is ClientState.TRAINING
        self._answered += state in (ClientState.DONE, ClientState.FAILED)
        now = time.monotonic()
        if now - self._drawn > _DRAWING:
            self._drawn = now
            self._draw(f"round {self._number}: {self._answered} of {self._asked} clients, {now - self._begin:.0f} s")

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Print it."""
        self._draw("")
        print(report, file=sys.stderr, flush=True)

    def _draw(self, text: str) -> None:
        """Draw a text over the last one. None, if there was none and is none."""
        if self._width or text:
            end = "" if text else "\r"
            print(f"\r{text:<{self._width}}", end=end, file=sys.stderr, flush=True)
        self._width = len(text)


def shown(progress: bool | None, callbacks: Iterable[Callback]) -> list[Callback]:
    """Return what shows the rounds of a simulation: nothing, if another callback does.

    progress: None: where people read stderr, in a terminal or a notebook.
    """
    if progress is None:
        progress = (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules
    return [RoundLines()] if progress and not any(isinstance(each, Progress) for each in callbacks) else []
