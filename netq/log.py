"""netq's log lines, which a thread of their own hands to `logging`. Every module of netq logs by it.

The record factory, filters and handlers of a logger are the user's code. They may raise, block, put on the very queue
that has logged, or wait for a lock whose holder calls `put`. So none of them runs in a thread that moves bytes, nor in
one that holds a baton. A line whose handler raises is lost, and nothing else. Lines keep their order.

    log.warning(…) ──append──► lines ──► the thread: record, filters, handlers

The thread runs while a loop of this process does (netq/io/loop.py). Without a loop, a line goes to `logging` at once.
Any code may log, also a signal handler and a finalizer: that takes no lock that it waits for, and starts no thread.
"""

from __future__ import annotations

import collections
import logging
import os
import sys
import threading
import traceback
from typing import Any, NamedTuple

from netq.io.condition import Condition
from netq.io.interrupts import raised_by_handler, suppress

_MOST = 1000  # lines that wait while a handler blocks; further ones are dropped, and counted


class _Line(NamedTuple):
    logger: logging.Logger
    level: int
    place: tuple[str, int, str]  # file, line, function
    text: str
    args: tuple[Any, ...]
    error: BaseException | None


class Log:
    """A logger by name. The methods are those of logging.Logger; none of them raises or waits."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, text: str, *args: Any) -> None:
        """Log what goes as it should."""
        self._add(logging.INFO, text, args, None)

    def warning(self, text: str, *args: Any) -> None:
        """Log what the user may want to change."""
        self._add(logging.WARNING, text, args, None)

    def error(self, text: str, *args: Any, exc_info: BaseException | None = None) -> None:
        """Log what has failed."""
        self._add(logging.ERROR, text, args, exc_info)

    def critical(self, text: str, *args: Any, exc_info: BaseException | None = None) -> None:
        """Log what ends the communicator."""
        self._add(logging.CRITICAL, text, args, exc_info)

    def exception(self, text: str, *args: Any) -> None:
        """Log what has failed, with the exception that is handled at the moment."""
        self._add(logging.ERROR, text, args, sys.exception())

    def log(self, level: int, text: str, *args: Any) -> None:
        """Log at a level."""
        self._add(level, text, args, None)

    def _add(self, level: int, text: str, args: tuple[Any, ...], error: BaseException | None) -> None:
        # Logger's own method reads numbers only; one that a subclass has overridden is the user's code, too.
        if level >= logging.Logger.getEffectiveLevel(self._logger):
            frame = sys._getframe(2)
            place = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
            thread.add(_Line(self._logger, level, place, text, args, error))


class LogThread:
    """The lines that wait, and the thread that emits them while it has users."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the lines and the thread: in a fork they are the parent's."""
        self._lines: collections.deque[_Line] = collections.deque()
        self._dropped = 0
        self._wakeup = threading.Lock()  # the thread waits for it
        self._wakeup.acquire()
        self._emitting = threading.Lock()  # held by the one thread that emits
        self._users = 0
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # of the two above
        self._quiet = Condition()  # a thread has emitted what there was, or the log's thread has ended

    def attach(self) -> None:
        """Run the thread until `detach`. If it cannot be started, lines wait for `flush`."""
        with self._lock:
            self._users += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="netq-log", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:
                    self._thread = None

    def detach(self) -> None:
        """End the thread, if it has no other users, when all lines are out."""
        with self._lock:
            self._users -= 1
        self._wake()

    def add(self, line: _Line) -> None:
        """Have a line emitted."""
        if len(self._lines) >= _MOST:
            self._dropped += 1
            return
        self._lines.append(line)
        if self._users:
            self._wake()
        else:
            self._emit_all(0)

    def flush(self, seconds: float) -> None:
        """Wait until the lines so far are out, and an unused thread has ended. A handler may block: not for longer."""
        if self._lines and self._thread is None:  # it could not be started
            self._emit_all(seconds)
        self._quiet.wait(self._is_quiet, seconds)

    def _is_quiet(self) -> bool:
        return not (self._lines or self._emitting.locked()) and (self._thread is None or self._users > 0)

    def _run(self) -> None:
        while True:
            while self._lines:
                try:
                    self._emit_all(-1)
                except BaseException as error:  # the user's code: not even sys.exit may end the thread
                    _print(error)
            with self._lock:
                if not (self._users or self._lines):
                    self._thread = None
                    break
            self._wakeup.acquire()
        self._quiet.notify()

    def _wake(self) -> None:
        if self._wakeup.locked():
            with suppress(RuntimeError):  # another thread was faster
                self._wakeup.release()

    def _emit_all(self, seconds: float) -> None:
        """Emit the lines that wait, unless another thread still emits after so long; -1 waits for it."""
        # It looks at `lines` again after the release. So a line that finds the lock taken is emitted by its holder.
        emitting, lines = self._emitting, self._lines  # these, also after a handler that forks
        while emitting.acquire(timeout=seconds):
            try:
                while lines:
                    _emit(lines.popleft())
            finally:
                emitting.release()
                self._quiet.notify()
            if dropped := self._take_dropped():
                log.warning("%d lines of this log were dropped: a filter or handler of it blocks", dropped)
            if not lines:
                return

    def _take_dropped(self) -> int:
        dropped, self._dropped = self._dropped, 0
        return dropped


def _emit(line: _Line) -> None:
    logger, level, (file, number, function), text, args, error = line
    try:
        if logger.isEnabledFor(level):
            info = None if error is None else (type(error), error, error.__traceback__)
            logger.handle(logger.makeRecord(logger.name, level, file, number, text, args, info, function))
    except BaseException as failure:  # the user's code: not even sys.exit may come out of a call that logs
        is_ctrl_c = isinstance(failure, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
        if is_ctrl_c or raised_by_handler(failure) is not None:  # it interrupts our caller
            raise
        _print(failure)


def _print(error: BaseException) -> None:
    """Show what a filter or handler has raised, as `logging` shows what comes out of a handler's `emit`."""
    if logging.raiseExceptions and sys.stderr is not None:
        with suppress(Exception):  # stderr may be closed, or the exception's text may raise
            traceback.print_exception(error, file=sys.stderr)


thread = LogThread()
log = Log("netq")

if hasattr(os, "register_at_fork"):  # where there is a fork
    os.register_at_fork(after_in_child=thread.reset)
