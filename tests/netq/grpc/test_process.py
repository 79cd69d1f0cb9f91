"""Processes with gRPC: how many threads they have, what a fork leaves to them; and that nothing is printed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from netq import NetworkLocation
from netq.testing.fixtures import LIMIT, Communicators
from tests.netq.conftest import Start, finish

BEGINNING = """
import json, os, sys, threading
import netq
GRPC, SERVER, CLIENT = netq.Protocol.GRPC, netq.Purpose.SERVER, netq.Purpose.CLIENT
def options(port):
    return netq.CommunicatorOptions(netloc=("127.0.0.1", int(port)))
def tell(*what):
    print(json.dumps(what), flush=True)
"""

ECHO = """
server = netq.new(GRPC, SERVER, options(0))
tell(*server.netloc)
while True:
    peer, data = server.get()
    server.put(len(os.listdir("/proc/self/task")) if data == "threads?" else data, peer)
"""

FORKS = """
client = netq.new(GRPC, CLIENT, options(sys.argv[1]))
client.put("before").result(30)
child = os.fork()
if child == 0:
    try:
        client.put("from the child")
    except RuntimeError:
        try:
            netq.new(GRPC, CLIENT, options(sys.argv[1]))
        except RuntimeError as error:
            tell(str(error))
    sys.exit(7)
tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
client.put("after").result(30)
client.close()
child = os.fork()
if child == 0:
    try:
        netq.new(GRPC, CLIENT, options(sys.argv[1]))
    except RuntimeError as error:
        tell(str(error))
    sys.exit(8)
tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def told(process: subprocess.Popen[str]) -> list[object]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    return list(json.loads(line))


def where(process: subprocess.Popen[str]) -> NetworkLocation:
    host, port = told(process)
    return NetworkLocation(str(host), int(str(port)))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for the threads")
def test_clients_need_no_thread_each(communicators: Communicators, start: Start) -> None:
    netloc = where(start(BEGINNING + ECHO))
    clients = [communicators.client(netloc) for _ in range(80)]
    futures = [client.put("threads?") for client in clients]
    for future in futures:
        future.result(LIMIT)
    counts = [client.get(timeout=LIMIT).data for client in clients]
    print("threads of a server of 80 clients:", max(counts))
    assert max(counts) <= 16
    for client in clients:
        communicators.abort(client)


def test_fork_refuses_grpc_in_the_child(communicators: Communicators, start: Start) -> None:
    server = communicators.server()
    process = start(BEGINNING + FORKS, server.netloc.port)
    for code in (7, 8):  # the second when all is closed: grpc's threads may still be there
        assert "fork before the first gRPC communicator is made" in str(told(process)[0])
        assert told(process) == [code]
    finish(process)
    assert [server.get(timeout=LIMIT).data for _ in range(2)] == ["before", "after"]


def test_server_prints_nothing_of_grpc(communicators: Communicators, start: Start) -> None:
    process = start(BEGINNING + ECHO)
    netloc = where(process)
    client = communicators.client(netloc)
    client.put("hello").result(LIMIT)
    assert client.get(timeout=LIMIT).data == "hello"
    communicators.abort(client)
    process.kill()
    assert process.communicate(timeout=LIMIT) == ("", "")


def test_missing_library_is_named(start: Start) -> None:
    process = start(
        BEGINNING + "sys.modules['grpc'] = None\n"
        "try:\n    netq.new(GRPC)\nexcept ImportError as error:\n    tell(str(error), 'GRPC_VERBOSITY' in os.environ)"
    )
    assert told(process) == ["netq.Protocol.GRPC needs grpcio: pip install grpcio", False]
    finish(process)
