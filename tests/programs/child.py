"""Run programs of this folder as processes, for tests: the one place that starts, hears and ends them.

A program gets what it is to be on its command line (told.py) and answers in JSON lines. Waits never longer than LIMIT.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from netq import NetworkLocation, Purpose
from netq.testing.fixtures import LIMIT

if TYPE_CHECKING:
    from tests.wires import Wire

HERE = NetworkLocation("127.0.0.1", 0)
ROOT = Path(__file__).parents[2]
SOON = {"retry_min": 0.01, "retry_max": 0.1}  # what Communicators gives to communicators of the test's own process

Facts = dict[str, Any]


class Child:
    """A program as it runs."""

    def __init__(self, program: str, told: Facts, environment: Mapping[str, str]) -> None:
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by close()
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", f"tests.programs.{program}", json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            cwd=ROOT,
            env=os.environ | environment,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()  # "" is the last
        self._reader = threading.Thread(target=self._read, name="child-reader", daemon=True)
        self._reader.start()

    def hear(self, timeout: float = LIMIT) -> Facts:
        """Return the next line; raises queue.Empty after `timeout` seconds, EOFError if there are no more."""
        line = self._lines.get(timeout=timeout)
        if not line:
            raise EOFError(f"the program has ended; it said {self.errors()}")
        facts: Facts = json.loads(line)
        return facts

    def say(self, word: str) -> None:
        """Tell it a word."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def ask(self, word: str) -> Facts:
        """Tell it a word, and return its answer."""
        self.say(word)
        return self.hear()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        """`kill -9`, and wait for its end."""
        self.process.kill()
        self.process.wait(LIMIT)

    def finish(self, status: int = 0) -> None:
        """Wait for its end; it is to have nothing left to say."""
        assert self.process.wait(LIMIT) == status, self.errors()
        assert self._lines.get(timeout=LIMIT) == "", "it had more to say"
        assert "Traceback" not in self.errors(), self.errors()

    def errors(self) -> str:
        """Return what it has written to stderr."""
        self._stderr.flush()
        return os.pread(self._stderr.fileno(), 2**20, 0).decode()

    def close(self) -> None:
        """End it, however it is."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        with self.process:  # its pipes
            self._stderr.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")


class Children:
    """Starts programs; ends those that are left at its own end."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def start(
        self,
        program: str,
        wire: Wire,
        purpose: Purpose,
        netloc: NetworkLocation = HERE,
        environment: Mapping[str, str] | None = None,
        *,
        id: uuid.UUID | None = None,
        connection: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Child:
        """Start a program; `more` is for it alone."""
        told = {
            **wire.facts(purpose, netloc),
            "id": str(id or uuid.uuid4()),
            "connection": SOON | dict(connection or {}),
            **more,
        }
        child = Child(program, told, environment or {})
        self._stack.callback(child.close)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
