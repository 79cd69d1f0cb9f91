"""Our strategy under Flower's own: a SuperLink and two SuperNodes, and the simulation on Ray, all of them processes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.federation.rows import OFFLINE, write_app
from netq import NetworkLocation
from tests.servers import ports

ROOT = Path(__file__).parents[3]
BINARIES = Path(sys.executable).parent
LIMIT = 100.0  # seconds

CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    partition = context.node_config["partition-id"]
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    model["w"] += partition + 1
    model["steps"] += 10
    arrays = ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})
    metrics = MetricRecord({"num-examples": 1 + 2 * partition, "loss": float(partition)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
"""

SERVER = """
import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp

import fl.flower

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = fl.flower.FedAvg(fraction_evaluate=0.0)
    start = ArrayRecord({"w": Array(np.zeros(3, np.float32)), "steps": Array(np.array([0, 5]))})
    result = strategy.start(grid, start, num_rounds=2, timeout=60)
    found = {name: [array.dtype, array.numpy().tolist()] for name, array in result.arrays.items()}
    losses = [record["loss"] for record in result.train_metrics_clientapp.values()]
    Path(context.run_config["result"]).write_text(json.dumps({**found, "losses": losses}))
"""

# By hand: each round adds (1 * 1 + 2 * 3) / 4 to w, and 10 to steps, which stay whole numbers.
EXPECTED = {"w": ["float32", [3.5] * 3], "steps": ["int64", [20, 25]], "losses": [0.75, 0.75]}


class Flower:
    """Flower's processes: they all bear the mark of one FLWR_HOME, and end with it."""

    def __init__(self, folder: Path, ray: Path) -> None:
        self.folder = folder
        self.superlink = ports.free()
        self._environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "home"),
            **OFFLINE,
            "RAY_TMPDIR": str(ray),
            "PYTHONPATH": str(ROOT),
            "PATH": f"{BINARIES}{os.pathsep}{os.environ['PATH']}",
        }
        write_app(folder, self.superlink.port, CLIENT, SERVER, 'result = ""\n')

    @contextmanager
    def running(self, program: str, *arguments: str, listens: NetworkLocation | None = None) -> Iterator[None]:
        with (self.folder / "log").open("ab") as log:
            command = [str(BINARIES / program), "--insecure", *arguments]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment, cwd=self.folder)
        try:
            deadline = time.monotonic() + LIMIT
            while listens is not None and not ports.listened(listens):
                assert process.poll() is None, self.log
                assert time.monotonic() < deadline, self.log
                threading.Event().wait(0.1)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def run(self, *arguments: str) -> Any:
        """What the ServerApp came to."""
        result = self.folder / "result.json"
        command = [
            str(BINARIES / "flwr"),
            "run",
            ".",
            "mine",
            "--stream",
            "--run-config",
            f'result="{result}"',
            *arguments,
        ]
        done = subprocess.run(
            command, env=self._environment, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert result.exists(), f"{done.stdout[-3000:]}{done.stderr[-3000:]}{self.log}"
        return json.loads(result.read_text())

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()[-5000:]

    def kill_rest(self) -> None:
        """End the processes that it left behind, found by their environment."""
        mark = f"FLWR_HOME={self.folder / 'home'}\0".encode()
        for environment in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in environment.read_bytes() + b"\0":
                    os.kill(int(environment.parent.name), signal.SIGKILL)
            except (OSError, ProcessLookupError):
                continue


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[Flower]:
    ray = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # its sockets want a short path
    made = Flower(tmp_path, ray)
    try:
        yield made
    finally:
        made.kill_rest()
        shutil.rmtree(ray, ignore_errors=True)


@pytest.mark.slow
def test_under_a_superlink_and_its_supernodes(flower: Flower) -> None:
    host, port = flower.superlink
    with ExitStack() as stack:
        start = [f"--host={host}", f"--port={port}", "--disable-runtime-dependency-installation"]
        stack.enter_context(flower.running("flower-superlink", *start, listens=flower.superlink))
        for partition in range(2):
            node = [f"--superlink={host}:{port}", f"--port={ports.free().port}"]
            config = f"--node-config=partition-id={partition} num-partitions=2"
            stack.enter_context(flower.running("flower-supernode", *node, config))
        assert flower.run() == EXPECTED


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no ray here: pip install 'flwr[simulation]'")
def test_in_the_simulation_on_ray(flower: Flower) -> None:
    host, port = flower.superlink
    start = ["--simulation", "--isolation=subprocess", f"--host={host}", f"--port={port}"]
    with flower.running("flower-superlink", *start, listens=flower.superlink):
        assert flower.run("--federation-config", "client-resources-num-cpus=1 num-supernodes=2") == EXPECTED
