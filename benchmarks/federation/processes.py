"""Starts the processes of a row, measures their memory, and ends them.

Their environment has a mark, which child processes inherit. By the mark, the processes that Flower and Ray start are
found, measured and ended too. Linux only.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
BINARIES = Path(sys.executable).parent
LIMIT = 600.0  # seconds for a row
_EVERY = 0.2  # seconds between two measurements of memory
_TAIL = 3000  # characters of a log that an error shows


class Failed(Exception):
    """A row has no figures; the text is the end of its log."""


class Processes:
    """The processes of one row. A context manager. `every`: seconds between two measurements of memory."""

    def __init__(self, environment: Mapping[str, str], every: float = _EVERY) -> None:
        self._every = every
        self.folder = Path(tempfile.mkdtemp(prefix="fed", dir="/tmp"))  # the paths of Ray's sockets must be short
        self._mark = secrets.token_hex(16)
        self._result = self.folder / "result.json"
        self._environment = {
            **os.environ,
            **environment,
            "FEDERATION_MARK": self._mark,
            "FEDERATION_RESULT": str(self._result),
            "FLWR_HOME": str(self.folder / "home"),
            "RAY_TMPDIR": str(self.folder / "ray"),
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            "PATH": f"{BINARIES}{os.pathsep}{os.environ['PATH']}",
        }
        self._log = (self.folder / "log").open("ab")
        self._started: list[subprocess.Popen[bytes]] = []
        self._ended = threading.Event()
        self._peak = 0  # bytes of all processes together
        self._watcher = threading.Thread(target=self._watch_memory)
        self._watcher.start()

    def python(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a module of this repository."""
        return self.start(sys.executable, "-m", module, *arguments)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a program."""
        process = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, env=self._environment, cwd=self.folder, start_new_session=True
        )
        self._started.append(process)
        return process

    def until_listens(self, port: int) -> None:
        """Wait until something listens at a port. Raises Failed."""
        deadline = time.monotonic() + LIMIT
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            if time.monotonic() > deadline:
                raise Failed(self._tail())
            time.sleep(0.1)

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the process that reports the figures. Raises Failed, also if another process fails before."""
        deadline = time.monotonic() + LIMIT
        while process.poll() is None:
            if any(each.poll() not in (None, 0) for each in self._started) or time.monotonic() > deadline:
                raise Failed(self._tail())
            time.sleep(0.1)

    def figures(self) -> dict[str, Any]:
        """Return the reported figures and the peak of memory. Raises Failed."""
        if not self._result.exists():
            raise Failed(self._tail())
        figures: dict[str, Any] = json.loads(self._result.read_text())
        return {**figures, "peak": self._peak}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._watcher.join()
        for number in (signal.SIGINT, signal.SIGKILL):
            for process in self._marked():
                try:
                    os.kill(process, number)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + 5.0
            while self._marked() and time.monotonic() < deadline:
                time.sleep(0.1)
        for each in self._started:
            each.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _watch_memory(self) -> None:
        while not self._ended.wait(self._every):
            self._peak = max(self._peak, sum(map(_memory, self._marked())))

    def _marked(self) -> list[int]:
        mark, found = f"FEDERATION_MARK={self._mark}\0".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes() + b"\0" and _runs(int(path.parent.name)):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def _tail(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-_TAIL:]


def _runs(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def _memory(process: int) -> int:
    """Return its proportional share of memory (PSS), in bytes: shared memory counts once in a sum of processes."""
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
