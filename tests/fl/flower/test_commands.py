"""`fl flower run`, `fl flower simulate` and `edge run --flower` with an app's folder that is not in PYTHONPATH."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from netq.security import certificates
from tests.servers import ports

ROOT = Path(__file__).parents[3]
LIMIT = 60.0  # seconds

PROJECT = """
[tool.flwr.app.components]
serverapp = "farm.server_app:app"
clientapp = "farm.client_app:app"

[tool.flwr.app.config]
rounds = 2

[tool.flwr.app.config.train]
step = 1.0
"""
CLIENT = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from farm.task import array

app = ClientApp()


@app.train()
def train(message, context):
    step = context.run_config["train.step"] * (1 + context.node_config["partition-id"])
    weights = message.content["arrays"]["w"].numpy() + step
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": ArrayRecord({"w": array(weights)}), "metrics": metrics}), reply_to=message)
"""
SERVER = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from farm.task import array

app = ServerApp()


@app.main()
def main(grid, context):
    model = ArrayRecord({"w": array(np.zeros(2))})
    result = FedAvg(fraction_evaluate=0.0).start(grid, model, num_rounds=context.run_config["rounds"])
    print(result.arrays["w"].numpy().tolist(), flush=True)
"""
TASK = "from flwr.app import Array as array\n"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app's folder."""
    folder = tmp_path / "app"
    (folder / "farm").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    for name, text in (("__init__", ""), ("client_app", CLIENT), ("server_app", SERVER), ("task", TASK)):
        (folder / "farm" / f"{name}.py").write_text(text)
    return folder


class Commands:
    """Processes in one folder. What runs at the end is killed."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def start(self, *command: str) -> subprocess.Popen[str]:
        process = self._stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        self._stack.callback(process.kill)
        return process

    def run(self, *command: str) -> tuple[int, str, str]:
        return end(self.start(*command))


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=LIMIT)
    return process.returncode, out, errors


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with ExitStack() as stack:
        yield Commands(tmp_path, stack)


def node(number: int) -> str:
    return f"--node-config=partition-id={number} num-partitions=2"


@pytest.mark.slow
def test_nodes_stay_for_the_next_run(app: Path, tmp_path: Path, commands: Commands) -> None:
    (tmp_path / "at.toml").write_text(
        f'[server]\nhost = "127.0.0.1"\nport = {ports.free().port}\n[connection]\nretry_max = 0.2\n'
    )
    run = ("fl", "flower", "run", "app", "at.toml", "--nodes=2")
    nodes = [commands.start("edge", "run", "--flower=app", node(number), "at.toml") for number in range(2)]
    status, out, errors = commands.run(*run, "--stay", "--run-config=train.step=2.0 rounds=1")
    assert (status, out) == (0, "[3.0, 3.0]\n"), errors
    assert re.search(r"waiting for 2 nodes at 127\.0\.0\.1:\d+\n", errors)
    assert "waiting for nodes: " in errors
    assert errors.count("[ROUND 1/1]") == 1  # by Flower's logger, and not by ours a second time
    assert [each.poll() for each in nodes] == [None, None]
    status, out, errors = commands.run(*run)
    assert (status, out) == (0, "[3.0, 3.0]\n"), errors
    for each in nodes:
        status, _, errors = end(each)
        assert status == 0, errors


@pytest.mark.slow
def test_secure_aggregation_is_in_the_servers_file(app: Path, tmp_path: Path, commands: Commands) -> None:
    at = f'[server]\nhost = "127.0.0.1"\nport = {ports.free().port}\n[connection]\nretry_max = 0.2\n'
    (tmp_path / "at.toml").write_text(at)
    (tmp_path / "server.toml").write_text(f'{at}[secure]\nclip = 1000\nmax_examples = "equal"\n')
    run = ("fl", "flower", "run", "app", "server.toml", "--nodes=3")
    for number in range(3):
        commands.start("edge", "run", "--flower=app", node(number), "at.toml", "--set=secure.required=true")
    status, out, errors = commands.run(*run, "--stay")
    assert status == 0, errors
    assert json.loads(out) == pytest.approx([4.0, 4.0], abs=1e-4)
    assert "train 2: 3 nodes, masked, 0.00% clipped" in errors
    (app / "farm" / "server_app.py").write_text(SERVER.replace("FedAvg", "FedMedian"))
    status, out, errors = commands.run(*run)
    assert (status, out) == (2, "")
    assert errors.endswith(
        "fl: Grid.secure: train: FedMedian looks at single replies, and the server learns their mean only\n"
    )
    (tmp_path / "server.toml").write_text(f"{at}[secure]\n")
    status, _, errors = commands.run(*run)
    assert (status, errors.count("\n")) == (2, 1)
    assert "server.toml: secure.max_examples: None; expected what the largest node has" in errors


@pytest.mark.slow
def test_simulate_runs_the_nodes_too(app: Path, commands: Commands) -> None:
    status, out, errors = commands.run("fl", "flower", "simulate", "app", "--nodes=4", "--run-config=rounds=1")
    assert (status, out) == (0, "[2.5, 2.5]\n"), errors
    assert "fl: simulating 4 nodes" in errors
    assert "connected" not in errors


@pytest.mark.slow
def test_without_a_file_the_address_is_said_at_once(app: Path, commands: Commands) -> None:
    """It is said before the server listens: another process may have the default port."""
    process = commands.start("fl", "flower", "run", "app")
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.endswith("waiting for 1 node at 127.0.0.1:51966 (of this machine only: no SERVER.toml was given)\n")


@pytest.mark.slow
def test_error_of_a_running_app_is_shown_with_its_traceback(app: Path, commands: Commands) -> None:
    status, _, errors = commands.run("fl", "flower", "simulate", "app", "--nodes=2", "--run-config=rounds='two'")
    assert status == 1
    assert re.search(r'File ".*/farm/server_app\.py", line \d+, in main\n', errors)
    assert errors.splitlines()[-1].startswith("fl: the ServerApp raised TypeError: ")


@pytest.mark.slow
def test_error_in_an_app_is_one_line_and_status_2(app: Path, commands: Commands) -> None:
    with (app / "farm/server_app.py").open("a") as file:
        file.write("1 / 0\n")
    status, _, errors = commands.run("fl", "flower", "run", "app")
    assert (status, errors.count("\n")) == (2, 1)
    assert re.search(r"farm/server_app\.py, line \d+, raises ZeroDivisionError: division by zero", errors)
    status, _, errors = commands.run("fl", "flower", "run", "app", "--verbose")
    assert "Traceback" in errors
    assert "    1 / 0" in errors


@pytest.mark.slow
def test_server_delivers_a_signed_app(app: Path, tmp_path: Path, commands: Commands) -> None:
    certificates.init(tmp_path / "certs")
    author = certificates.issue(tmp_path / "certs", "author")
    at = f'[server]\nhost = "127.0.0.1"\nport = {ports.free().port}\n[connection]\nretry_max = 0.2\n'
    (tmp_path / "server.toml").write_text(at)
    devices = []
    for number in range(2):
        table = f'[app]\nfolder = "apps{number}"\nsigner = "{author.certificate}"\n[flower]\npartition-id = {number}\n'
        (tmp_path / f"{number}.toml").write_text(at + table)
        devices.append(commands.start("edge", "run", f"{number}.toml"))
    run = ("fl", "flower", "run", "app", "server.toml", "--nodes=2", "--deliver")
    status, _, errors = commands.run(*run)
    assert status == 2
    assert "app: this app is not signed; run: fl flower sign " in errors
    status, out, errors = commands.run("fl", "flower", "sign", "app", str(author.key))
    assert status == 0, errors
    assert out.startswith("app/app.signature: the signature of the app's version ")
    status, out, errors = commands.run(*run)
    assert (status, out) == (0, "[3.0, 3.0]\n"), errors
    assert errors.count("is sent the app's files") == 2
    for each in devices:
        status, _, errors = end(each)
        assert status == 0, errors
        assert "has arrived, and its signature is right" in errors
