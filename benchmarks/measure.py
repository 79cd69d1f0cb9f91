"""One measurement: two new processes, pinned to two cores, and the figures that they print.

Called by benchmarks/__main__.py and the tests. Owns the processes (benchmarks/side.py) while they run, and what they
share: a folder with certificates, and a broker.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import broker
from benchmarks.peers import Peer
from benchmarks.task import Place, Task

ROOT = Path(__file__).parent.parent
LIMIT = 180.0  # seconds for one measurement
ENDING = 60.0  # seconds for a server to end when its client has failed
_SHARED = Path("/dev/shm")


class Failed(Exception):
    """A process ended and printed no figures."""


@dataclass(frozen=True)
class Sample:
    """The result of one measurement: the figures of both processes (Side in benchmarks/works.py)."""

    task: Task
    client: dict[str, Any]
    server: dict[str, Any]

    @property
    def seconds(self) -> float:
        """The seconds from the first send to the last receipt. One way, two processes measure them by one clock."""
        last = self.server if self.task.work == "one_way" else self.client
        return float(last["ended"] - self.client["began"])

    def at(self, size: int) -> Sample:
        """Return what a sweep measured at one size: a sample of messages one way, with the times of round trips."""
        step = self.client["steps"][str(size)]
        side = {"began": 0.0, "ended": step["seconds"], "times": step["times"]}
        return Sample(replace(self.task, work="one_way", size=size, count=step["count"]), side, side)


@dataclass
class Stage:
    """What measurements share: a folder, and a broker that is started when the first peer needs it."""

    folder: Path
    stack: ExitStack
    broker_port: int = 0

    def place(self, peer: Peer, task: Task) -> Place:
        """Prepare what the peer needs; return the address and files for its two processes."""
        if peer.tls and not (self.folder / "server.pem").exists():
            from netq.security import certificates  # imported here: it needs cryptography

            certificates.init(self.folder)
            certificates.issue(self.folder, "client")
        if peer.broker and not self.broker_port:
            self.broker_port = self.stack.enter_context(broker.running(self.folder))
        port, is_bounded = self.broker_port if peer.broker else broker.free_port(), task.work != "exchange"
        return Place("127.0.0.1", port, self.folder, peer.variant, task.kind, task.size, is_bounded)


@contextmanager
def stage() -> Iterator[Stage]:
    """Yield a stage for a with statement; remove everything at its end."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=_SHARED if _SHARED.is_dir() else None))
        stack.callback(_remove_segments, Path(folder).name)
        yield Stage(Path(folder), stack)


def _remove_segments(prefix: str) -> None:
    """Remove the shared memory of a peer whose names begin with that of the folder, and an underscore."""
    for segment in _SHARED.glob(f"{prefix}_*"):
        segment.unlink()


def measure(peer: Peer, task: Task, stage: Stage) -> Sample:
    """Run the task in two new processes. Raises Failed, with the last line of their output."""
    given = replace(task, kind=peer.kind or task.kind)
    place = stage.place(peer, given).to_dict()
    assignment = {"module": peer.module, "loop": peer.loop, "task": dataclasses.asdict(given), "place": place}
    with ExitStack() as stack:
        server = _start(stack, peer, "server", assignment)
        _wait_until_ready(server)
        client = _start(stack, peer, "client", assignment)
        watch = threading.Thread(target=_kill_client_of_failed_server, args=(server, client))
        watch.start()
        out, errors = client.communicate()
        if client.returncode:
            with suppress(subprocess.TimeoutExpired):  # it may be ending, and what it says then is the reason
                server.wait(ENDING)
            server.kill()
        server_out, server_errors = server.communicate()
        watch.join()
        failed = [_why(*each) for each in ((client, errors), (server, server_errors)) if each[0].returncode > 0]
        if failed:  # the one because of the other
            raise Failed("; ".join(failed))
        return Sample(task, _figures(client, out, errors), _figures(server, server_out, server_errors))


def _kill_client_of_failed_server(server: subprocess.Popen[str], client: subprocess.Popen[str]) -> None:
    """Wait for the server; if it fails, kill the client, which would wait for it."""
    if server.wait():
        client.kill()


def _start(stack: ExitStack, peer: Peer, side: str, assignment: dict[str, Any]) -> subprocess.Popen[str]:
    """Start a process that is killed after LIMIT, or at the end of the stack."""
    command = [peer.python(), "-m", "benchmarks.side", side]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment |= dict(peer.environment)
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=environment)
    stack.enter_context(process)
    stack.callback(process.kill)
    timer = threading.Timer(LIMIT, process.kill)
    stack.callback(timer.join)
    stack.callback(timer.cancel)
    timer.start()
    assert process.stdin is not None
    process.stdin.write(json.dumps(assignment) + "\n")
    process.stdin.flush()
    return process


def _wait_until_ready(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    for line in server.stdout:
        if line.strip() == "ready":
            return
    _figures(server, "", server.communicate()[1])


def _figures(process: subprocess.Popen[str], out: str, errors: str) -> dict[str, Any]:
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise Failed(_why(process, errors))
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _why(process: subprocess.Popen[str], errors: str) -> str:
    messages = [line for line in errors.splitlines() if line.strip()]
    how = "killed: not done in time" if process.returncode == -9 else f"exit {process.returncode}"
    return f"{how}: {messages[-1].strip() if messages else 'nothing said'}"
