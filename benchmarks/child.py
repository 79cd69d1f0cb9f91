"""A function of benchmarks/ in a process of its own, pinned to a core: for what is not a question of questions.py."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import netq
from netq.bench.resources import pin
from netq.options import SerializationOptions

BYTES = SerializationOptions(lambda stream: stream, lambda data: data)  # messages are plain bytes
LIMIT = 120.0  # seconds for one measurement


def python(function: Callable[..., object], *words: object) -> list[str]:
    """Return a command that calls a function with words, as text."""
    module = Path(inspect.getfile(function)).stem  # function.__module__ is __main__ in the command itself
    code = f"import sys; from benchmarks.{module} import {function.__name__} as call; call(*sys.argv[1:])"
    return [sys.executable, "-c", code, *map(str, words)]


@contextmanager
def serving(function: Callable[..., object], *words: object) -> Iterator[int]:
    """Run a function that prints the port at which it listens; yield the port. The process is killed at the end."""
    command = python(function, *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=functools.partial(pin, 0)) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def output(command: list[str]) -> float:
    """Run a program on the second core; return the number that it prints."""
    pinned = functools.partial(pin, 1)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT, preexec_fn=pinned)
    return float(done.stdout)


def local(port: int, serialization: SerializationOptions, **connection: Any) -> netq.CommunicatorOptions:
    """Return options for a communicator on this machine; port 0: a free one."""
    return netq.CommunicatorOptions(
        netloc=netq.NetworkLocation("127.0.0.1", port),
        connection=netq.ConnectionOptions(queue_bytes=2**40, **connection),
        serialization=serialization,
    )
