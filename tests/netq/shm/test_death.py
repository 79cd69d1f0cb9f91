"""A killed process: its peer notices at once, and no message is delivered in part or twice."""

from __future__ import annotations

import itertools
import pickle
import random
import statistics
import time
import uuid

import pytest

from netq import NetworkLocation
from netq.core import Communicator
from netq.testing.fixtures import LIMIT, Communicators, introduce
from netq.testing.log import LogRecorder
from tests.netq.conftest import Start

CLIENT = uuid.UUID(int=7)
DEATHS = 10
SIZES = (10, 3000, 300_000, 2_000_000)

SENDER = """
import sys, uuid
from pickle import PickleBuffer
import netq, netq.shm.client
options = netq.CommunicatorOptions(id=uuid.UUID(int=7), netloc=(sys.argv[1], int(sys.argv[2])))
with netq.new(netq.Protocol.SHM, options=options) as client:
    client.put("ready").result(30)
    for number in range(10**6):
        size = (10, 3000, 300_000, 2_000_000)[number % 4]
        client.put(PickleBuffer(bytes([number % 251]) * size))
        if number % 8 == 7:
            client.get(timeout=30)
"""


def receive_all(server: Communicator, until: float) -> int:
    """Receive messages until `until`, and then all that are there; return how many. Check each one and the order."""
    for number in itertools.count():
        try:
            data = server.get(CLIENT, timeout=max(0.0, until - time.monotonic())).data
        except TimeoutError:
            return number
        assert len(data) == SIZES[number % 4], f"message {number} has {len(data)} bytes"
        assert data[0] == data[-1] == number % 251
        assert bytes(data).count(number % 251) == len(data), f"message {number} is not what was put"
        if number % 8 == 7:
            server.put(pickle.PickleBuffer(bytes(SIZES[number % 3])), CLIENT)
    raise AssertionError


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_client_killed_again_and_again_at_random_instants(
    communicators: Communicators, start: Start, log: LogRecorder
) -> None:
    chance, noticed, taken = random.Random(5), [], 0
    server = communicators.server()
    for deaths in range(1, DEATHS + 1):
        process = start(SENDER, *server.netloc)
        while server.get(CLIENT, timeout=LIMIT).data != "ready":
            pass  # messages of its predecessor
        taken += receive_all(server, time.monotonic() + chance.uniform(0, 0.05))
        killed = time.monotonic()
        process.kill()
        log.wait(f"{CLIENT}: lost (the peer hung up", deaths)
        noticed.append(time.monotonic() - killed)
        process.wait()
    print(f"{taken} messages taken, noticed after {statistics.median(noticed):.4f} s, at most {max(noticed):.4f} s")
    assert taken > 2 * DEATHS
    assert max(noticed) < 2.0
    client = communicators.client(server.netloc)
    introduce(server, client)
    communicators.abort(client)
    communicators.abort(server)  # what the last one did not receive_all is lost with it


SERVER = """
import sys
import netq
options = netq.CommunicatorOptions(netloc=(sys.argv[1], int(sys.argv[2])))
with netq.new(netq.Protocol.SHM, netq.Purpose.SERVER, options=options) as server:
    while True:
        peer, data = server.get(timeout=60)
        server.put(len(data), peer)
"""


@pytest.mark.slow
def test_client_continues_with_the_next_server(communicators: Communicators, start: Start, log: LogRecorder) -> None:
    netloc: NetworkLocation = communicators.unused_address()
    client = communicators.client(netloc)
    for deaths in range(1, 4):
        process = start(SERVER, *netloc)
        client.put(bytes(5_000_000))
        assert client.get(timeout=LIMIT).data == 5_000_000
        process.kill()
        log.wait("the peer hung up; trying again", deaths)
        process.wait()
    communicators.abort(client)


FORKER = """
import os, sys
import netq
purpose, host, port = netq.Purpose(sys.argv[1]), sys.argv[2], int(sys.argv[3])
communicator = netq.new(netq.Protocol.SHM, purpose, netq.CommunicatorOptions(netloc=(host, port)))
if purpose is netq.Purpose.CLIENT:
    communicator.put(bytes(1_000_000)).result(30)
else:
    communicator.get(timeout=30)
ours, theirs = os.pipe()
if os.fork():
    os.read(ours, 1)  # the child runs, and has closed its copies
    print(flush=True)
    sys.stdin.read()
os.write(theirs, b"x")
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.parametrize("purpose", ["client", "server"])
def test_surviving_fork_does_not_hide_a_death(
    communicators: Communicators, start: Start, log: LogRecorder, purpose: str
) -> None:
    netloc = communicators.unused_address()
    ours = communicators.server(netloc) if purpose == "client" else communicators.client(netloc)
    process = start(FORKER, purpose, *netloc)
    if purpose == "client":
        assert len(ours.get(timeout=LIMIT).data) == 1_000_000
    else:
        ours.put(bytes(1_000_000)).result(LIMIT)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    log.wait("the peer hung up")
    process.wait()
    if purpose == "server":
        introduce(communicators.server(netloc), ours)
    assert process.stdin is not None
    process.stdin.close()  # ends the child, which has the same stdin
