"""`kill -9` of an edge client or of the aggregator in the middle of a federation, with and without a restart: the run
finishes, or the one that begins anew. And an agent that is told to end says goodbye.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from netq.security import certificates

ROOT = Path(__file__).parents[2]
ROUNDS = 30
CLIENTS = 3
SECOND = 10  # rounds of the aggregator that is started again
BACK = 20.0  # seconds until a round with all has ended: retry_max, 5 s, and the training of three on a busy machine
GOODBYE = 5.0  # seconds

# Training that takes its time, so that there is a middle to be killed in, and rounds left after the restart. It says
# when it begins.
SLOW_TRAINING = """
from examples.digits import model

def train(weights, config):
    print(config["round"], flush=True)
    for _ in range(16):
        update = model.train(weights, config)
    return update
"""

Facts = dict[str, Any]


class Federation:
    """The aggregator and its clients as processes; `rounds` are its lines as they come."""

    def __init__(self, folder: Path, stack: ExitStack, files: certificates.Files | None = None) -> None:
        self._folder = folder
        self._stack = stack
        self._files = files
        (folder / "slow_training.py").write_text(SLOW_TRAINING)
        self.start_aggregator()
        self.clients = [self.start_client(number) for number in range(CLIENTS)]

    def start_aggregator(self, port: int = 0, rounds: int = ROUNDS) -> None:
        options = [f"--clients={CLIENTS}", f"--rounds={rounds}", f"--port={port}"]
        if self._files is not None:
            options += [f"--key={self._files.key}", f"--certificate={self._files.certificate}"]
        self.aggregator = self._start("examples.digits.aggregator", *options)
        self.rounds = self._lines()
        self.port = next(self.rounds)["port"]

    def start_client(self, number: int) -> subprocess.Popen[str]:
        config = self._folder / f"client-{number}.toml"
        config.write_text(f"""\
[server]
host = "127.0.0.1"
port = {self.port}
[client]
train = "slow_training:train"
[training]
keep = true
[connection]
retry_max = 5.0
[settings]
partition = {number}
partitions = {CLIENTS}
""")
        if self._files is not None:
            with config.open("a") as file:
                file.write(f'[security]\ncertificate = "{self._files.authority}"\n')
        return self._start("edge", "run", str(config))

    def until_training(self, number: int, round: int) -> None:
        """Wait until a client trains in that round."""
        output = self.clients[number].stdout
        assert output is not None
        assert any(int(line) == round for line in output), f"it has ended, and there was no round {round}"

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
        lines = (json.loads(line) for line in self.aggregator.stdout)
        return (facts for facts in lines if "links" not in facts)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with ExitStack() as stack:
        yield Federation(tmp_path, stack)


@pytest.mark.slow
def test_run_finishes_without_a_killed_client(federation: Federation) -> None:
    federation.until(clients=CLIENTS)
    federation.kill(2)
    first = federation.until(clients=CLIENTS - 1)
    assert len(first["failures"]) <= 1  # 0: it was killed between two rounds
    last = federation.finish()
    assert last["round"] == ROUNDS
    assert last["clients"] == CLIENTS - 1
    assert last["accuracy"] >= 0.93
    assert [federation.clients[number].wait(30) for number in (0, 1)] == [0, 0]


@pytest.mark.slow
def test_restarted_client_takes_part_again(federation: Federation) -> None:
    federation.until(clients=CLIENTS)
    federation.kill(2)
    federation.until(clients=CLIENTS - 1)
    federation.clients[2] = federation.start_client(2)
    federation.until(clients=CLIENTS)
    last = federation.finish()
    assert last["round"] == ROUNDS
    assert last["clients"] == CLIENTS
    assert last["accuracy"] >= 0.93
    assert [client.wait(30) for client in federation.clients] == [0] * CLIENTS


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True], ids=["tcp", "tls"])
def test_clients_return_to_a_restarted_aggregator(tmp_path: Path, secure: bool) -> None:
    with ExitStack() as stack:
        federation = Federation(tmp_path, stack, certificates.init(tmp_path) if secure else None)
        federation.until_training(0, federation.until(clients=CLIENTS)["round"] + 1)
        federation.aggregator.kill()
        federation.aggregator.wait()
        federation.start_aggregator(federation.port, rounds=SECOND)
        start = time.monotonic()  # it listens: loading torch before that is not what is measured
        assert next(federation.rounds)["clients"] == CLIENTS
        assert time.monotonic() - start < BACK
        last = federation.finish()
        assert (last["round"], last["clients"]) == (SECOND, CLIENTS)
        assert [client.wait(30) for client in federation.clients] == [0] * CLIENTS


@pytest.mark.slow
def test_sigterm_in_a_round_ends_the_agent_cleanly(federation: Federation) -> None:
    """The round that it was in goes on without it at once, and does not wait as for one that is lost (grace)."""
    round = federation.until(clients=CLIENTS)["round"] + 1
    federation.until_training(2, round)
    federation.clients[2].send_signal(signal.SIGTERM)
    assert federation.clients[2].wait(GOODBYE) == 0
    facts = federation.until(clients=CLIENTS - 1)
    assert (facts["round"], facts["failures"]) == (round, ["it has gone"])
