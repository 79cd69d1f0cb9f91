"""A communicators whose communicators share memory, and processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from subprocess import PIPE

import pytest

from netq import Protocol
from netq.testing.fixtures import Communicators
from tests.netq.makers import plain

Start = Callable[..., "subprocess.Popen[str]"]

collect_ignore_glob = [] if sys.platform.startswith("linux") else ["test_*.py"]


@pytest.fixture
def communicators() -> Iterator[Communicators]:
    with Communicators(plain(Protocol.SHM)) as communicators:
        yield communicators


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python processes; they are ended with the test."""
    with ExitStack() as stack:

        def start(code: str, *args: object) -> subprocess.Popen[str]:
            command = [sys.executable, "-W", "error", "-c", code, *map(str, args)]
            process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start
