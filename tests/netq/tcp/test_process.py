"""A server process that runs out of descriptors. What else becomes of processes is in tests/faults."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from subprocess import PIPE

import pytest

from netq import NetworkLocation
from netq.testing.fixtures import LIMIT, Communicators

Start = Callable[..., "subprocess.Popen[str]"]

EXHAUSTED = """
import json, resource, socket, sys
import netq
from netq.testing.log import LogRecorder
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
server = netq.new(purpose=netq.Purpose.SERVER, options=netq.CommunicatorOptions(netloc=("127.0.0.1", 0)))
with LogRecorder() as log:
    print(json.dumps(server.netloc), flush=True)
    print(log.wait("no connection can be accepted for now"), flush=True)
    peer, data = server.get(timeout=30)
    server.put(data, peer).result(30)
    server.close()
"""


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def start(code: str, *args: object) -> subprocess.Popen[str]:
            command = [sys.executable, "-W", "error", "-c", code, *map(str, args)]
            process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def finish(process: subprocess.Popen[str]) -> None:
    out, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, out, errors) == (0, "", "")


def test_a_server_without_descriptors_serves_those_who_wait_when_it_has_some(
    communicators: Communicators, start: Start
) -> None:
    process = start(EXHAUSTED)
    assert process.stdout is not None
    netloc = NetworkLocation(*json.loads(process.stdout.readline()))
    with ExitStack() as idle:
        for _ in range(100):
            idle.enter_context(socket.create_connection(netloc, LIMIT))
        assert "Too many open files" in process.stdout.readline()
        client = communicators.client(netloc)
        client.put("I can wait")
    assert client.get(timeout=LIMIT).data == "I can wait"
    client.close(LIMIT)
    finish(process)
