"""A server of the client's own: a process on this machine, which ends when the client does, however that ends.

It is told to end by the end of its stdin, which comes also when the client is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

from netq.options import NetworkLocation

_PATIENCE = 5.0  # seconds for it to end


class ServerFailed(Exception):
    """It ended before it listened, and has said why on stderr; `status` is its exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server process ended with status {status}")
        self.status = status


@contextlib.contextmanager
def own_server(arguments: Sequence[str], environment: Mapping[str, str]) -> Iterator[NetworkLocation]:
    """Run `bench server` with these arguments within a with statement; yield where it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "netq", "bench", "server", "--json", "--until-eof", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        process_group=0,  # Ctrl-C is for the client, which then ends this
    )
    with process:
        try:
            yield _where(process)
        finally:
            _end(process)


def wait_for_eof() -> None:
    """Wait until the process that started this one has closed its stdin, or is gone."""
    while os.read(0, 1024):  # not sys.stdin: a daemon thread that holds its lock would be in the way of the exit
        continue


def _where(process: subprocess.Popen[str]) -> NetworkLocation:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ServerFailed(process.wait())
    said = json.loads(line)
    return NetworkLocation(said["host"], said["port"])


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
