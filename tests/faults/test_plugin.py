"""The plugin: tests marked `alone` run alone, and the figures of all processes are in one table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = """
import os, threading
import pytest

alone = pytest.mark.alone

@pytest.mark.parametrize("number", [0, pytest.param(1, marks=alone), 2, pytest.param(3, marks=alone)])
@pytest.mark.parametrize("id", [os.popen("cat /proc/sys/kernel/random/uuid").read().strip()])
def test_work(number, id, request, record_property):
    name = f"{request.path.stem}-{number}"
    alone = request.node.get_closest_marker("alone") is not None
    record_property("figure", (f"{number} a case", f"{name}, alone: {alone}"))
    with open(request.path.parent / "log", "a") as log:
        for word in ("begin", "end"):
            print(word, name, alone, os.getpid(), file=log, flush=True)
            threading.Event().wait(0.1)  # the test's work
"""


Played = tuple[str, list[list[str]]]


def played(folder: Path, *arguments: str) -> Played:
    """Run eight tests of two files; return the output and the log of the tests."""
    for name in ("test_one", "test_two"):
        (folder / f"{name}.py").write_text(FILE)
    plugins = ["-p", "xdist", "-p", "tests.faults.plugin"]  # without those of all else that is installed
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", *plugins, *arguments, str(folder)]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, [line.split() for line in (folder / "log").read_text().splitlines()]


@pytest.fixture(scope="module")
def in_two(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("two"), "-n", "2", "--dist", "loadfile")


@pytest.fixture(scope="module")
def in_one(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("one"))


@pytest.mark.slow
def test_alone_means_alone_in_all_processes(in_two: Played) -> None:
    _, log = in_two
    assert len({pid for *_, pid in log}) == 2
    begins = [number for number, (word, *_) in enumerate(log) if word == "begin"]
    apart = {log[number][1] for number in begins if log[number][1] == log[number + 1][1]}
    assert apart >= {"test_one-1", "test_one-3", "test_two-1", "test_two-3"}
    assert len(apart) < 8, "no two tests ran at the same time: two processes were of no use"
    order = [name for word, name, *_ in log if word == "begin"]
    for file in ("test_one", "test_two"):
        assert order.index(f"{file}-3") == order.index(f"{file}-1") + 1, "others came between them"


@pytest.mark.slow
@pytest.mark.parametrize(("run", "count"), [("in_two", 2), ("in_one", 1)], ids=["two processes", "one process"])
def test_figures_of_all_processes_are_one_table(request: pytest.FixtureRequest, run: str, count: int) -> None:
    printed, log = request.getfixturevalue(run)
    assert len({pid for *_, pid in log}) == count
    table = printed.split("faults: what was measured")[1].splitlines()
    assert [line for line in table if " a case" in line] == [
        f"{number} a case                     test_{name}-{number}, alone: {number % 2 == 1}"
        for number in range(4)
        for name in ("one", "two")
    ]
