"""A large message costs each end little more than its own size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from netq.security import certificates

SIZE = 100 * 2**20
LIMIT = 100.0
MOST = 1.25  # times the message: it, and a quarter of it

BEGINNING = """
import sys
from pathlib import Path
import numpy as np
import netq

secure, size = sys.argv[1] == "tls", int(sys.argv[2])

def memory(figure):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(figure))

def options(port, *files):
    security = netq.SecurityOptions(*files) if secure else None
    return netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port), security=security)
"""

SERVER = (
    BEGINNING
    + """
with netq.new(netq.Protocol.GRPC, netq.Purpose.SERVER, options=options(0, *sys.argv[3:5])) as server:
    print(server.netloc.port, flush=True)
    assert server.get(timeout=60).data == "hello"
    before = memory("VmRSS")
    peer, data = server.get(timeout=60)
    received = memory("VmHWM") - before
    assert data.sum() == size // 8
    server.put("mine", peer).result(60)
    assert server.get(timeout=60).data == "yours?"
    server.put(data, peer).result(60)
    print(received / size, (memory("VmHWM") - before) / size)
"""
)

CLIENT = (
    BEGINNING
    + """
with netq.new(netq.Protocol.GRPC, options=options(int(sys.argv[4]), None, sys.argv[3])) as client:
    client.put("hello").result(60)
    before = memory("VmRSS")
    data = np.ones(size // 8)
    client.put(data).result(60)
    sent = memory("VmHWM") - before
    assert client.get(timeout=60).data == "mine"
    del data
    client.put("yours?")
    assert client.get(timeout=60).data.sum() == size // 8
    print(sent / size, (memory("VmHWM") - before) / size)
"""
)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the peak")
@pytest.mark.slow
@pytest.mark.parametrize("security", ["plain", "tls"])
def test_a_message_of_100_mib_each_way_costs_little_more_than_itself(files: certificates.Files, security: str) -> None:
    def start(code: str, *args: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, security, str(SIZE), *map(str, args)]
        # One arena: glibc gives grpc's threads one each, and what is free in another is no memory that a message needs.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        return subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=environment)

    with start(SERVER, files.key, files.certificate) as server:
        assert server.stdout is not None
        with start(CLIENT, files.authority, server.stdout.readline().strip()) as client:
            outcomes = [process.communicate(timeout=LIMIT) for process in (client, server)]
    assert [errors for _, errors in outcomes] == ["", ""]
    for name, (figures, _) in zip(("client", "server"), outcomes, strict=True):
        print(security, name, figures)
        assert all(float(figure) <= MOST for figure in figures.split()), f"{name}: {figures}"
