"""README's code runs as it stands there: each block that begins with a file's name, as that file."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", README, re.DOTALL))

# The port that the examples use by default may be taken on this machine: here they get another.
PROLOGUE = """
import netq.options
netq.options.NetworkLocation.__new__.__defaults__ = ("127.0.0.1", {port})
"""


class Scripts:
    """Runs README's blocks as processes."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]

    def start(self, name: str) -> subprocess.Popen[str]:
        path = self._folder / name
        path.write_text(PROLOGUE.format(port=self._port) + BLOCKS[name])
        process = subprocess.Popen(
            [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    with ExitStack() as stack:
        yield Scripts(tmp_path, stack)


def test_all_blocks_of_code_are_run() -> None:
    queues = {"server.py", "client.py", "awaiting_server.py", "awaiting_client.py"}
    assert set(BLOCKS) == queues | {"aggregator.py", "device.py"}
    assert README.count("```python") == len(BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["server.py", "awaiting_server.py"])
@pytest.mark.parametrize("client", ["client.py", "awaiting_client.py"])
@pytest.mark.parametrize("first", ["server", "client"])
def test_server_and_client_greet_in_either_order(scripts: Scripts, server: str, client: str, first: str) -> None:
    order = (server, client) if first == "server" else (client, server)
    processes = {name: scripts.start(name) for name in order}
    out, _ = processes[client].communicate(timeout=30)
    assert out == "Hello, server! Hello, client!\n"
    assert processes[client].returncode == 0
    assert processes[server].wait(30) == 0


@pytest.mark.slow
def test_two_devices_and_an_aggregator_learn(scripts: Scripts) -> None:
    aggregator, *devices = [scripts.start(name) for name in ("aggregator.py", "device.py", "device.py")]
    out, _ = aggregator.communicate(timeout=30)
    assert [line.split(":")[0] for line in out.splitlines()[:-1]] == [f"round {number}" for number in range(1, 21)]
    assert out.splitlines()[-1].replace(" ", "") == "[1.-2.3.]"
    assert [device.wait(30) for device in devices] == [0, 0]


def test_the_make_targets_that_the_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (README, (ROOT / "CONTRIBUTING.md").read_text()):
        assert set(re.findall(r"^make ([a-z]+)", page, re.MULTILINE)) <= targets
