"""The plugin: tests marked `alone` run alone, and the figures of all processes are in one table."""

from __future__ import annotations

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


def played(folder: Path, *arguments: str) -> tuple[str, list[list[str]]]:
    """Run eight tests of two files; return the output and the log of the tests."""
    for name in ("test_one", "test_two"):
        (folder / f"{name}.py").write_text(FILE)
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "tests.faults.plugin", *arguments, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, [line.split() for line in (folder / "log").read_text().splitlines()]


@pytest.mark.slow
def test_alone_means_alone_in_all_processes(tmp_path: Path) -> None:
    _, log = played(tmp_path, "-n", "2", "--dist", "loadfile")
    assert len({pid for *_, pid in log}) == 2
    begins = [number for number, (word, *_) in enumerate(log) if word == "begin"]
    apart = {log[number][1] for number in begins if log[number][1] == log[number + 1][1]}
    assert apart >= {"test_one-1", "test_one-3", "test_two-1", "test_two-3"}
    assert len(apart) < 8, "no two tests ran at the same time: two processes were of no use"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["-n", "2", "--dist", "loadfile"], []], ids=["two processes", "one process"])
def test_figures_of_all_processes_are_one_table(tmp_path: Path, arguments: list[str]) -> None:
    printed, log = played(tmp_path, *arguments)
    assert len({pid for *_, pid in log}) == (2 if arguments else 1)
    table = printed.split("faults: what was measured")[1].splitlines()
    assert [line for line in table if " a case" in line] == [
        f"{number} a case                     test_{name}-{number}, alone: {number % 2 == 1}"
        for number in range(4)
        for name in ("one", "two")
    ]
