"""Processes that are killed, and what a large message costs each of them and the broker."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE

import pytest

from netq.mqtt.topic import new_id
from netq.testing.fixtures import LIMIT, Communicators
from netq.testing.log import LogRecorder
from tests.netq.makers import at_broker
from tests.netq.mqtt.conftest import NewBroker
from tests.servers.mosquitto import Mosquitto

MIB = 1024**2
FAST = 1.0  # seconds: the heartbeat would need 30

BEGINNING = """
import sys, threading
import numpy as np
import netq
from netq import MqttOptions, NetworkLocation, Protocol, Purpose
port, prefix, size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
options = netq.CommunicatorOptions(netloc=NetworkLocation(port=port), mqtt=MqttOptions(prefix=prefix))
def memory(name):
    line = next(line for line in open("/proc/self/status") if line.startswith(name))
    return int(line.split()[1]) * 1024
"""
CLIENT = """
with netq.new(Protocol.MQTT, Purpose.CLIENT, options) as client:
    client.put("hello").result(30)
    print("up", flush=True)
    threading.Event().wait()
"""
SERVER = """
with netq.new(Protocol.MQTT, Purpose.SERVER, options) as server:
    server.get(timeout=60)
    print("up", flush=True)
    threading.Event().wait()
"""
TAKER = """
with netq.new(Protocol.MQTT, Purpose.SERVER, options) as server:
    peer, _ = server.get(timeout=60)
    before = memory("VmRSS")
    _, data = server.get(timeout=60)
    assert data.sum() == size // 8
    server.put(data, peer).result(60)
    server.get(timeout=60)
    print((memory("VmHWM") - before) / 2**20 - size / 2**20)
"""
GIVER = """
with netq.new(Protocol.MQTT, Purpose.CLIENT, options) as client:
    data = np.ones(size // 8)
    client.put("hello").result(60)
    before = memory("VmRSS")
    client.put(data).result(60)
    sent = memory("VmHWM") - before
    assert client.get(timeout=60).data.sum() == size // 8
    client.put("done").result(60)
    print(sent / 2**20, (memory("VmHWM") - before) / 2**20 - size / 2**20)
"""


@contextmanager
def program(code: str, broker: Mosquitto, prefix: str, size: int = 0) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", BEGINNING + code, str(broker.netloc.port), prefix, str(size)]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def up(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"


@pytest.mark.slow
def test_a_server_knows_within_a_second_that_a_client_was_killed(broker: Mosquitto, log: LogRecorder) -> None:
    prefix = f"test/{new_id()}"
    with Communicators(at_broker(broker.netloc, prefix=prefix)) as communicators:
        server = communicators.server()
        with program(CLIENT, broker, prefix) as process:
            up(process)
            start = time.monotonic()
            process.kill()
            log.wait("the broker has lost it")
            seconds = time.monotonic() - start
        print(f"noticed after {seconds * 1000:.0f} ms")
        assert seconds < FAST
        assert not any(figures.connected for figures in server.statistics().values())
        communicators.abort(server)


@pytest.mark.slow
def test_a_client_knows_within_a_second_that_the_server_was_killed_and_finds_the_next(
    broker: Mosquitto, log: LogRecorder
) -> None:
    prefix = f"test/{new_id()}"
    with Communicators(at_broker(broker.netloc, prefix=prefix)) as communicators:
        client = communicators.client(broker.netloc)
        with program(SERVER, broker, prefix) as process:
            client.put("hello").result(LIMIT)
            up(process)
            start = time.monotonic()
            process.kill()
            log.wait("the broker has lost the server")
            seconds = time.monotonic() - start
        print(f"noticed after {seconds * 1000:.0f} ms")
        assert seconds < FAST
        server = communicators.server()
        client.put("again").result(LIMIT)
        assert server.get(timeout=LIMIT).data == "again"


@pytest.mark.slow
@pytest.mark.parametrize("mib", [100, 1024])
def test_a_large_message_each_way_costs_little_more_than_itself(new_broker: NewBroker, mib: int) -> None:
    broker, prefix, size = new_broker(), f"test/{new_id()}", mib * MIB
    idle = broker.memory()
    with program(TAKER, broker, prefix, size) as server, program(GIVER, broker, prefix, size) as client:
        outcomes = [process.communicate(timeout=100) for process in (client, server)]
    figures = [float(figure) for output, _ in outcomes for figure in output.split()]
    figures.append((broker.memory("VmHWM") - idle) / MIB)
    print(f"{mib} MiB; above it: client sending, client receiving, server, broker:", *(f"{f:.1f}" for f in figures))
    assert [errors for _, errors in outcomes] == ["", ""]
    assert len(figures) == 4
    assert all(figure < 64 for figure in figures)
