"""A bench server in another process, and a fixture that runs the command in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from netq import NetworkLocation
from netq.__main__ import main
from netq.bench import command
from netq.testing.fixtures import LIMIT

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., Any]


def start_in(stack: ExitStack, *arguments: str) -> subprocess.Popen[str]:
    """Start `netq bench …`; it is killed at the end of the stack, if it still runs."""
    arguments = (sys.executable, "-W", "error", "-m", "netq", "bench", *arguments)
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def where(server: subprocess.Popen[str]) -> str:
    """Return where a server that was started with --json listens."""
    assert server.stdout is not None
    return "{host}:{port}".format(**json.loads(server.stdout.readline()))


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda *arguments: start_in(stack, *arguments)


@pytest.fixture(scope="session")
def netloc() -> Iterator[str]:
    """A bench server for all tests."""
    with ExitStack() as stack:
        yield where(start_in(stack, "server", "--netloc", "127.0.0.1:0", "--json", "--max-message", "1MiB"))


@pytest.fixture
def location(netloc: str) -> NetworkLocation:
    host, _, port = netloc.rpartition(":")
    return NetworkLocation(host, int(port))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command with --json, and return what it prints."""
    monkeypatch.setattr(command, "_SOON", LIMIT)  # a busy machine may be late, and it would say so

    def run(*arguments: str) -> Any:
        assert main(["bench", *arguments, "--json"]) == 0
        out, errors = capsys.readouterr()
        assert errors == ""
        return json.loads(out)

    return run
