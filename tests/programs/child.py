"""Runs the programs of this folder as processes of a test: starts them, reads their reports and ends them.

A program gets its options on the command line (command_line.py) and reports in JSON lines. No wait exceeds LIMIT.
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
SOON = {"retry_min": 0.01, "retry_max": 0.1}  # the same as Communicators uses in the test's own process

Facts = dict[str, Any]


class Child:
    """A running program."""

    def __init__(self, program: str, facts: Facts, environment: Mapping[str, str]) -> None:
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by close()
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", f"tests.programs.{program}", json.dumps(facts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            cwd=ROOT,
            env=os.environ | environment,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()  # "" at the end
        self._reader = threading.Thread(target=self._read, name="child-reader", daemon=True)
        self._reader.start()

    def receive(self, timeout: float = LIMIT) -> Facts:
        """Return the next report; raises queue.Empty after `timeout` seconds, EOFError at the end."""
        line = self._lines.get(timeout=timeout)
        if not line:
            raise EOFError(f"the program has ended; its stderr: {self.errors()}")
        report: Facts = json.loads(line)
        return report

    def send(self, command: str) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def ask(self, command: str) -> Facts:
        """Send a command, and return the next report."""
        self.send(command)
        return self.receive()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def stop(self) -> None:
        """Send SIGSTOP, and wait until the process is stopped."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait(LIMIT)

    def finish(self, status: int = 0) -> None:
        """Wait for the end. There must be no unread report and no traceback."""
        assert self.process.wait(LIMIT) == status, self.errors()
        assert self._lines.get(timeout=LIMIT) == "", "there are more reports"
        assert "Traceback" not in self.errors(), self.errors()

    def errors(self) -> str:
        """Return what the process has written to stderr."""
        self._stderr.flush()
        return os.pread(self._stderr.fileno(), 2**20, 0).decode()

    def close(self) -> None:
        """Kill the process, in whatever state it is."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        with self.process:  # closes its pipes
            self._stderr.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")


class Children:
    """Starts programs; kills those that still run at its own end."""

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
        """Start a program; `more` are facts for this program."""
        facts = {
            **wire.facts(purpose, netloc, id or uuid.uuid4()),
            "connection": SOON | dict(connection or {}),
            **more,
        }
        child = Child(program, facts, environment or {})
        self._stack.callback(child.close)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
