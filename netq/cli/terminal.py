"""What the commands write to a terminal or a pipe: log lines and errors, with control characters escaped.

Used by netq/__main__.py, netq/bench, fl/__main__.py and edge/__main__.py. Text of peers is escaped where it arrives;
here it is the text of files, libraries and users' functions, which may have an escape sequence in it, too.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

from netq.buffers import Buffer
from netq.io.interrupts import outside_steps
from netq.text import printable

_LONGEST = 20_000  # characters of a line


class Formatter(logging.Formatter):
    """Formats a record as one line, and its traceback below. `translate`: changes the line."""

    def __init__(self, translate: Callable[[str], str] = str) -> None:
        self._translate = translate
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return printable(self._translate(super().formatMessage(record)), _LONGEST)

    def formatException(self, error: Any) -> str:
        """Return the traceback."""
        return "\n".join(printable(line, _LONGEST) for line in super().formatException(error).splitlines())


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to the present sys.stderr: rich replaces it, to keep log lines and its drawing apart."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def log_to_stderr(level: int, translate: Callable[[str], str] = str, *, present: bool = False) -> None:
    """Log lines of this level and above to stderr: to what it is now or, with `present`, when a line is written.

    translate: as of Formatter.
    """
    handler = _Stderr() if present else logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter(translate))
    logging.basicConfig(handlers=[handler], level=level)


@outside_steps
def stop(signum: int, frame: FrameType | None) -> None:
    """Unwind the stack, so that communicators close their sessions. A signal handler."""
    raise SystemExit(0)


@contextmanager
def told_if_slow(log: logging.Logger, what: str, seconds: float = 5.0) -> Iterator[None]:
    """Log what the `with` block does if it takes longer: a start that imports torch on a board looks hung."""
    timer = threading.Timer(seconds, log.info, (what,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def fail(command: str, error: Exception, status: int) -> int:
    """Print the line of an error that ends a command, and return the exit status."""
    logging.getLogger(command).debug("where it happened", exc_info=error)
    print(f"{command}: {sentence(error)}", file=sys.stderr)
    return status


def sentence(error: BaseException) -> str:
    """Return the text of an error in one line; the name of its class if it has none."""
    return printable(" ".join(str(error).split()), _LONGEST) or type(error).__name__


class _Pipe(io.FileIO):
    """A file that drops what is written when it is a pipe whose reader has gone."""

    def write(self, data: Buffer) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def outlive_readers() -> None:
    """Let the process finish, with the exit status of its work, if a reader of its output goes: `… | head -1`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
            raw: Any = _Pipe(stream.fileno(), "wb", closefd=False)
            buffer = raw if stream.write_through else io.BufferedWriter(raw)
            encoding, errors, by_line = stream.encoding, stream.errors, stream.line_buffering
            setattr(sys, name, io.TextIOWrapper(buffer, encoding, errors, None, by_line, stream.write_through))
