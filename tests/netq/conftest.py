"""Fixtures: MQTT brokers that serve a whole test session, plain and with TLS; and the choice of the codec."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from subprocess import PIPE

import pytest

from netq.options import ConnectionOptions
from netq.protocol import codec
from netq.runtime.link import backoff
from netq.testing.fixtures import LIMIT
from tests.netq.codecs import use_python


def is_compiled() -> bool:
    """Return whether the compiled codec is in use."""
    return codec.take.__module__ == "netq.protocol._codec"


COMPILED = is_compiled()  # by users
Start = Callable[..., "subprocess.Popen[str]"]  # given the program's text, and its arguments


class Attempts:
    """Counts the pauses before attempts to connect; for tests with one client."""

    def __init__(self) -> None:
        self.latest = 0  # attempts since the link was last steady
        self._changed = threading.Condition()

    def backoff(self, attempt: int, options: ConnectionOptions) -> float:
        with self._changed:
            self.latest = attempt + 1
            self._changed.notify_all()
        return backoff(attempt, options)

    def wait(self, count: int) -> None:
        """Wait until the client has begun its attempt number `count`."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.latest >= count, LIMIT), f"{self.latest} attempts"


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    """Count the attempts of the client that the test makes."""
    attempts = Attempts()
    monkeypatch.setattr("netq.runtime.reconnect.backoff", attempts.backoff)
    return attempts


@pytest.fixture
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the public check of order put 300 messages. For fronts, whose calls cross threads twice there, and for all
    transports but one: the core keeps the order, and is checked with 10,000.
    """
    monkeypatch.setattr("netq.testing.checks.messages._MANY", 300)


@pytest.fixture
def python_codec() -> Iterator[None]:
    """Use the functions of netq/protocol/codec.py, not the compiled ones."""
    with use_python():
        yield


@pytest.fixture(params=["python", "compiled"])
def each_codec(request: pytest.FixtureRequest) -> None:
    """Run the test with each codec."""
    if request.param == "python":
        request.getfixturevalue("python_codec")
    elif not COMPILED:
        pytest.skip("the compiled codec is not in use: NETQ_PURE is set, or it is not built")


@pytest.fixture
def thin(each_codec: None) -> int:
    """Return the step through a table: 1 with the codec that users run, 7 with the other, which test_codec compares."""
    return 1 if is_compiled() == COMPILED else 7


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python programs as processes, and kill them with the end of the test."""
    with ExitStack() as stack:

        def start(code: str, *args: object) -> subprocess.Popen[str]:
            command = [sys.executable, "-W", "error", "-c", code, *map(str, args)]
            process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for the end of a process that has nothing left to print."""
    out, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, out, errors) == (0, "", "")
