"""README's code runs as it stands there: each block that begins with a file's name, as that file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import ROOT, Page, Scripts

README = Page("README.md")


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    with Scripts(README, tmp_path) as started:
        yield started


def test_all_blocks_of_code_are_run() -> None:
    queues = {"server.py", "client.py", "awaiting_server.py", "awaiting_client.py"}
    assert set(README.scripts()) == queues | {"aggregator.py", "device.py"}
    assert len(README.blocks("python")) == len(README.scripts())


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
    for page in (README.text, (ROOT / "CONTRIBUTING.md").read_text()):
        assert set(re.findall(r"^make ([a-z]+)", page, re.MULTILINE)) <= targets
