"""Kills an agent, or its child, at random moments of a federation, and starts the agent again, as a supervisor does.

    python -m tests.edge.power_cuts [KILLS] [SEED]

Prints a line for each kill: when, what, what the agent was doing, and what came of the rounds. A round takes about a
second, most of it a training of 0.4 s and the starts of processes. Fails unless

    - each round that counts has the next update of the device: none is lost, and none is counted twice. The device
      numbers its updates in config["state"];
    - the model is the number of these rounds;
    - the agent is back after each kill.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import fl
import netq
from tests.pages import ROOT

ID = uuid.UUID(int=5)
SIZE = 10**6  # float32 values of the model
SOON = 30.0
STEPS = {  # by a text in the agent's log
    " edge: device": "waiting",
    " netq.fl: round": "training",
    "the reply is stored": "sending",
    "sending the reply": "sending again",
    "no reply": "reporting",
}


def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Take 0.4 s to add 1. Number the updates."""
    config["state"]["number"] = number = config["state"].get("number", 0) + 1
    time.sleep(0.4)
    return fl.Update({"w": model["w"] + np.float32(1)}, 1, {"number": number})


class Agent:
    """The agent's process, which is started again after each kill. Its log says what it was doing."""

    def __init__(self, folder: Path, port: int) -> None:
        self._file, self._log = folder / "client.toml", folder / "log"
        self._file.write_text(
            f'[server]\nhost = "127.0.0.1"\nport = {port}\n'
            f'[client]\nid = "{ID}"\ntrain = "tests.edge.power_cuts:train"\nstate = "state"\n'
            "[connection]\nretry_min = 0.05\nretry_max = 0.2\n"
        )
        self._start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._start()

    def kill_child(self) -> bool:
        """Kill the child, if there is one now."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        return bool(children)

    def doing(self) -> str:
        lines = self._log.read_text().splitlines()[self._lines :]
        steps = [step for line in lines for text, step in STEPS.items() if text in line]
        return steps[-1] if steps else "starting"

    def _start(self) -> None:
        self._lines = len(self._log.read_text().splitlines()) if self._log.exists() else 0
        command = [sys.executable, "-m", "edge", "run", "--verbose", str(self._file)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)})


@contextmanager
def federation(folder: Path) -> Iterator[tuple[fl.Server, Agent]]:
    connection = netq.ConnectionOptions(takeover_grace=0.2)
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0), connection=connection)
    model = {"w": np.zeros(SIZE, np.float32)}
    with fl.Server(model, options, min_clients=1, patience=fl.Patience(deadline=SOON, grace=SOON)) as server:
        agent = Agent(folder, server.netloc.port)
        try:
            yield server, agent
        finally:
            server.close()
            agent.process.kill()
            agent.process.wait()


def main(kills: int = 20, seed: int = 1) -> int:
    """Kill the agent or its child so many times; print a line for each, and the result. Return the exit status."""
    rng, over = random.Random(seed), threading.Event()
    reports: list[fl.RoundReport] = []
    print(f"{kills} kills, seed {seed}\n  after    killed  while          the rounds until the next kill")
    with tempfile.TemporaryDirectory() as name, federation(Path(name)) as (server, agent):

        def rounds() -> None:
            while not over.is_set():
                reports.append(server.round())

        thread = threading.Thread(target=rounds)
        thread.start()
        for number in range(kills):
            begin, after = len(reports), rng.uniform(0.0, 2.0)
            time.sleep(after)
            doing, killed = agent.doing(), "child" if number % 2 and agent.kill_child() else "agent"
            if killed == "agent":
                agent.kill()
            until = time.monotonic() + SOON
            while len(reports) < begin + 2 and time.monotonic() < until:
                time.sleep(0.02)
            is_back = len(reports) >= begin + 2 and agent.process.poll() is None
            outcome = [_outcome(report) for report in reports[begin:]] + ["" if is_back else "NOT BACK"]
            print(f"  {after:4.2f} s   {killed}   {doing:14s} {', '.join(filter(None, outcome))}", flush=True)
            if not is_back:
                return 1
        over.set()
        thread.join(SOON)
        counted = [report for report in reports if report.clients]
        numbers = [int(report.metrics["number"]) for report in counted]
        model = set(server.model["w"].tolist())
    print(f"{len(counted)} rounds counted, {len(reports) - len(counted)} did not; the model is {model}")
    print(f"updates in these rounds: {numbers[0]} to {numbers[-1]}, {len(set(numbers))} different ones")
    return int(numbers != list(range(1, len(counted) + 1)) or model != {float(len(counted))})


def _outcome(report: fl.RoundReport) -> str:
    if report.clients:
        return f"round {report.number}: update {report.metrics['number']:.0f}"
    return f"round {report.number}: {' '.join(str(failure.why.name) for failure in report.failures.values())}"


if __name__ == "__main__":
    logging.disable()
    sys.exit(main(*map(int, sys.argv[1:])))
