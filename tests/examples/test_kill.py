"""`kill -9` of an edge client in the middle of a federation, and again with a restart: the run finishes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ROUNDS = 60
CLIENTS = 4

# Training that takes its time, so that there is a middle to be killed in, and rounds left after the restart.
SLOW_TRAINING = """
from examples.digits import model

def train(weights, config):
    for _ in range(16):
        update = model.train(weights, config)
    return update
"""

Facts = dict[str, Any]


class Federation:
    """The aggregator and its clients as processes; `rounds` are its lines as they come."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        (folder / "slow_training.py").write_text(SLOW_TRAINING)
        self.aggregator = self._start("examples.digits.aggregator", f"--clients={CLIENTS}", f"--rounds={ROUNDS}")
        self.rounds = self._lines()
        self._port = next(self.rounds)["port"]
        self.clients = [self.start_client(number) for number in range(CLIENTS)]

    def start_client(self, number: int) -> subprocess.Popen[str]:
        config = self._folder / f"client-{number}.toml"
        config.write_text(f"""\
[server]
host = "127.0.0.1"
port = {self._port}
[client]
train = "slow_training:train"
[settings]
partition = {number}
partitions = {CLIENTS}
""")
        return self._start("edge", str(config))

    def kill(self, number: int) -> None:
        self.clients[number].kill()
        self.clients[number].wait()

    def until(self, clients: int) -> Facts:
        """Read rounds up to the next with so many clients."""
        for facts in self.rounds:
            if facts["clients"] == clients:
                return facts
        raise AssertionError(f"the federation ended, and no round had {clients} clients")

    def finish(self) -> Facts:
        """Read all rounds that are left; return the last."""
        *_, last = self.rounds
        assert self.aggregator.wait(30) == 0
        return last

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={"PYTHONPATH": f"{self._folder}:{ROOT}", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process

    def _lines(self) -> Iterator[Facts]:
        assert self.aggregator.stdout is not None
        return (json.loads(line) for line in self.aggregator.stdout)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with ExitStack() as stack:
        yield Federation(tmp_path, stack)


@pytest.mark.slow
def test_the_run_finishes_without_a_client_that_is_killed(federation: Federation) -> None:
    federation.until(clients=4)
    federation.kill(2)
    first = federation.until(clients=3)
    assert len(first["failures"]) <= 1  # 0: it was killed between two rounds
    last = federation.finish()
    assert last["round"] == ROUNDS
    assert last["clients"] == 3
    assert last["accuracy"] >= 0.93
    assert [federation.clients[number].wait(30) for number in (0, 1, 3)] == [0, 0, 0]


@pytest.mark.slow
def test_a_client_that_is_killed_and_restarted_takes_part_again(federation: Federation) -> None:
    federation.until(clients=4)
    federation.kill(2)
    federation.until(clients=3)
    federation.clients[2] = federation.start_client(2)
    federation.until(clients=4)
    last = federation.finish()
    assert last["round"] == ROUNDS
    assert last["clients"] == 4
    assert last["accuracy"] >= 0.93
    assert [client.wait(30) for client in federation.clients] == [0, 0, 0, 0]
