"""An agent that is killed: after the next start it answers the same task with the update that it has stored."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import netq
from fl.envelope import Introduction, Job, Leave, Offer, Permit
from fl.messages import MESSAGES, Reply, Task, Update
from tests.edge import power_cuts, training
from tests.pages import ROOT

SOON = 20.0
ID = uuid.UUID(int=5)
HERE = training.__name__


class Server:
    """A server whose messages the test sends."""

    def __init__(self) -> None:
        self.sessions: SimpleQueue[uuid.UUID] = SimpleQueue()
        options = netq.CommunicatorOptions(
            netloc=netq.NetworkLocation("127.0.0.1", 0),
            serialization=MESSAGES,
            connection=netq.ConnectionOptions(takeover_grace=0.1),
            events=netq.EventOptions(ini=self.sessions.put),
        )
        self.queue = netq.new(purpose=netq.Purpose.SERVER, options=options)

    def ask(self, number: int, **fields: Any) -> Any:
        """Send a task, and return the answer."""
        self.send(number, **fields)
        return self.get()

    def send(self, number: int, **fields: Any) -> None:
        self.queue.put(Task(Job(7, number, "train"), {"w": np.zeros(3, np.float32)}, {}, **fields), ID)

    def get(self) -> Any:
        """Return the next message, but for what the agent says of itself at the beginning of a session."""
        while isinstance(message := self.queue.get(timeout=SOON).data, Introduction):
            pass
        return message

    def update(self, number: int) -> Update:
        reply = self.ask(number)
        assert isinstance(reply, Reply)
        assert isinstance(reply.content, Update), reply.content
        return reply.content


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.queue.close(0)


@contextmanager
def agent(server: Server, folder: Path, more: str = "", train: str = "train") -> Iterator[subprocess.Popen[str]]:
    path = folder / "client.toml"
    path.write_text(
        f'[server]\nhost = "127.0.0.1"\nport = {server.queue.netloc.port}\n'
        f'[client]\nid = "{ID}"\ntrain = "{HERE}:{train}"\nstate = "state"\n'
        f"[connection]\nretry_max = 0.1\n[settings]\nmark = '{folder / 'mark'}'\n{more}"
    )
    command = [sys.executable, "-m", "edge", "run", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            if not more:
                server.sessions.get(timeout=SOON)
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_stored_update_answers_the_task_after_a_kill(server: Server, tmp_path: Path) -> None:
    with agent(server, tmp_path):
        first = server.update(1)
        until_exists(tmp_path / "state" / "record")
    with agent(server, tmp_path):
        again, second = server.update(1), server.update(2)
    assert again.metrics == first.metrics
    assert first.metrics["pid"] != second.metrics["pid"]
    assert (first.metrics["count"], second.metrics["count"]) == (1, 2)


@pytest.mark.slow
def test_state_of_a_kept_child_goes_on_after_a_kill(server: Server, tmp_path: Path) -> None:
    counts = []
    for number in (1, 2):
        with agent(server, tmp_path, more="[training]\nkeep = true\n"):
            server.sessions.get(timeout=SOON)
            counts += [server.update(2 * number - 1).metrics["count"], server.update(2 * number).metrics["count"]]
    assert counts == [1, 2, 3, 4]


@pytest.mark.slow
def test_stored_update_is_offered_if_it_is_large(server: Server, tmp_path: Path) -> None:
    with agent(server, tmp_path):
        assert server.ask(1, unasked=0) == Offer(Job(7, 1, "train"), 12)
        until_exists(tmp_path / "state" / "record")
    with agent(server, tmp_path):
        assert server.ask(1, unasked=0) == Offer(Job(7, 1, "train"), 12)
        server.queue.put(Permit(Job(7, 1, "train")), ID)
        reply = server.get()
    assert reply.content.metrics["count"] == 1


@pytest.mark.slow
def test_damaged_update_is_computed_again(server: Server, tmp_path: Path) -> None:
    with agent(server, tmp_path):
        first = server.update(1)
        until_exists(tmp_path / "state" / "record")
    os.truncate(tmp_path / "state" / "record", 200)
    with agent(server, tmp_path) as process:
        again = server.update(1)
        process.kill()
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
    assert [line for line in lines if "is no whole update, and is dropped: it has 200 bytes" in line]
    assert first.metrics["pid"] != again.metrics["pid"]
    assert again.metrics["count"] == 1


@pytest.mark.slow
def test_child_ends_with_a_killed_agent(server: Server, tmp_path: Path) -> None:
    with agent(server, tmp_path, train="hangs") as process:
        server.send(1)
        until_exists(tmp_path / "mark")
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
        process.wait(SOON)
    until_ended(int(child))


@pytest.mark.slow
def test_unfit_device_does_not_connect(server: Server, tmp_path: Path) -> None:
    with agent(server, tmp_path, more="[fit]\nmin_free_memory = 1e9\n") as process:
        assert process.stderr is not None
        assert "waiting until the device is fit: free memory " in "".join(process.stderr.readline() for _ in range(2))
    assert server.sessions.empty()


@pytest.mark.slow
def test_device_leaves_before_a_round_would_exceed_its_traffic(server: Server, tmp_path: Path) -> None:
    with agent(server, tmp_path, more="[training]\nkeep = true\n[fit]\nmax_traffic = 0.005\n"):
        server.sessions.get(timeout=SOON)
        rounds = 0
        while isinstance(answer := server.ask(rounds + 1), Reply):
            rounds += 1
    assert isinstance(answer, Leave)
    assert answer.reason.startswith("another round makes 0.00")
    assert answer.reason.endswith(" MB in 60 minutes; fit.max_traffic is 0.005")
    assert rounds > 1


def until_exists(path: Path) -> None:
    poll(path.exists)


def until_ended(pid: int) -> None:
    poll(lambda: not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())


def poll(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_no_update_is_lost_or_counted_twice_by_kills() -> None:
    assert power_cuts.main(kills=4, seed=2) == 0
