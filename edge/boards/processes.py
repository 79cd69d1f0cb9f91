"""The agent of one board: its process, its log, and what it has used.

The command line of an agent is a chain of programs that each replace the one before, so that the process that we start
is the agent:

setpriv    the kernel kills the agent when this process dies, also by SIGKILL
sh         enters the cgroups
ip netns   enters the namespace; here /sys/fs/cgroup disappears
sh         only if the file names the server: the name resolves to the router's address
python     -m edge run FILE
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.boards.cgroups import Cgroup, Usage
from netq.text import printable

PATIENCE = 15.0  # seconds from SIGTERM to SIGKILL; a board of 0.1 cores needs some of them to leave the federation
_LONGEST = 20_000  # characters of a line of the log
_ENTER = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'
_NAME = 'mount --bind "$0" /etc/hosts && exec "$@"'  # in the mount namespace that ip netns has made


@dataclass(frozen=True)
class Ended:
    """How an agent ended."""

    status: str  # the exit status, or the name of a signal
    seconds: float  # since its start
    usage: Usage


class Agent:
    """One board's agent.

    overrides: environment variables that replace values of the file.
    hosts:     a file to use as /etc/hosts, if the server has a name.
    """

    def __init__(
        self,
        board: int,
        cgroup: Cgroup,
        namespace: str,
        file: Path,
        overrides: Mapping[str, str],
        hosts: Path | None,
    ) -> None:
        self._board, self._cgroup = board, cgroup
        self._environment = {**os.environ, **overrides}
        self._command = _command(cgroup.doors, namespace, file, hosts)
        self._process: Process | None = None

    async def run(self) -> Ended:
        """Start the agent and wait until it has ended, with all processes that it has started."""
        loop, started = asyncio.get_running_loop(), time.monotonic()
        read, write = os.pipe()  # not asyncio's: its wait() also waits for processes that keep the pipe open
        log = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(log), os.fdopen(read, "rb", 0))
        with contextlib.closing(transport):
            try:
                self._process = process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=DEVNULL,
                    stdout=write,
                    stderr=write,
                    env=self._environment,
                    start_new_session=True,
                )
            finally:
                os.close(write)
            copying = asyncio.create_task(_copy(log, f"board {self._board} | "))
            try:
                status = await process.wait()
            finally:
                self._cgroup.kill()
            await copying
        return Ended(_status(status), time.monotonic() - started, self._cgroup.usage())

    def stop(self, signum: signal.Signals) -> None:
        """Send a signal to the agent, if it runs. SIGKILL goes to all processes of the board."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signum)
            if signum is signal.SIGKILL:
                self._cgroup.kill()


def _command(doors: Sequence[str], namespace: str, file: Path, hosts: Path | None) -> list[str]:
    enter = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", _ENTER, "sh", *doors, "--"]
    name = [] if hosts is None else ["sh", "-c", _NAME, str(hosts)]
    return [*enter, "ip", "netns", "exec", namespace, *name, sys.executable, "-m", "edge", "run", str(file)]


async def _copy(log: asyncio.StreamReader, prefix: str) -> None:
    """Copy lines to stderr, each after the prefix."""
    rest = b""
    while data := await log.read(_LONGEST):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > _LONGEST:
            lines, rest = [*lines, rest], b""
        _write(prefix, lines)
    _write(prefix, [rest] if rest else [])


def _write(prefix: str, lines: Sequence[bytes]) -> None:
    text = "".join(f"{prefix}{printable(line.decode(errors='replace').rstrip(), _LONGEST)}\n" for line in lines)
    sys.stderr.write(text)
    sys.stderr.flush()


def _status(status: int) -> str:
    return str(status) if status >= 0 else signal.Signals(-status).name
