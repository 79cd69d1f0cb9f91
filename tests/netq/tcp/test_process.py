"""What other processes do to us, and we to them: they die, run out of descriptors, forget to close."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from subprocess import PIPE

import pytest

from netq import Closed, NetworkLocation
from netq.testing.proxy import Proxy
from netq.testing.stage import LIMIT, Stage, introduce

Start = Callable[..., "subprocess.Popen[str]"]

CLIENT = """
import sys, uuid
import netq
host, port, id = sys.argv[1], int(sys.argv[2]), uuid.UUID(sys.argv[3])
client = netq.new(options=netq.CommunicatorOptions(id=id, netloc=netq.NetworkLocation(host, port)))
"""

SENDER = (
    CLIENT
    + """
client.put("whole").result(30)
print("ready", flush=True)
input()
client.put(bytearray(8 * 2**20)).result(30)
"""
)

FORGETFUL = (
    CLIENT
    + """
for number in range(100):
    client.put((number, bytearray(100_000)))
"""
)

EXHAUSTED = """
import json, resource, socket, sys
import netq
from netq.testing.log import Log
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
server = netq.new(purpose=netq.Purpose.SERVER, options=netq.CommunicatorOptions(netloc=("127.0.0.1", 0)))
with Log() as log:
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


@pytest.mark.parametrize("offset", [1, 23, 100_000, 4 * 2**20 + 1, 8 * 2**20 - 1])
def test_a_client_killed_in_the_middle_of_a_message_delivers_no_part_of_it(
    stage: Stage, proxies: Callable[[NetworkLocation], Proxy], start: Start, offset: int
) -> None:
    server = stage.server()
    proxy = proxies(server.netloc)
    id = uuid.uuid4()
    process = start(SENDER, *proxy.netloc, id)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert server.get(timeout=0) == (id, "whole")
    before = proxy.passed
    proxy.hold(after=offset)
    process.stdin.write("go\n")
    process.stdin.flush()
    proxy.wait(before + offset, LIMIT)
    process.send_signal(signal.SIGKILL)
    process.wait(LIMIT)
    assert proxy.passed == before + offset
    proxy.cut()
    proxy.release()
    while server.statistics()[id].connected:
        pass
    with pytest.raises(TimeoutError):
        server.get(id, timeout=0)
    successor = stage.client(server.netloc, id=id)
    introduce(server, successor)


def test_a_process_that_ends_without_close_delivers_what_it_has_put(stage: Stage, start: Start) -> None:
    server = stage.server()
    id = uuid.uuid4()
    process = start(FORGETFUL, *server.netloc, id)
    for number in range(100):
        assert server.get(timeout=LIMIT).data[0] == number
    with pytest.raises(Closed):
        server.get(id, timeout=LIMIT)
    finish(process)


def test_a_server_without_descriptors_serves_those_who_wait_when_it_has_some(stage: Stage, start: Start) -> None:
    process = start(EXHAUSTED)
    assert process.stdout is not None
    netloc = NetworkLocation(*json.loads(process.stdout.readline()))
    with ExitStack() as idle:
        for _ in range(100):
            idle.enter_context(socket.create_connection(netloc, LIMIT))
        assert "Too many open files" in process.stdout.readline()
        client = stage.client(netloc)
        client.put("I can wait")
    assert client.get(timeout=LIMIT).data == "I can wait"
    finish(process)
