"""Peak memory of a server with a mean strategy: three models besides the interpreter, for any number of clients."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODEL = 40_000_000  # bytes

SERVER = """
import sys
import numpy as np
import fl, netq

def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

clients, size = int(sys.argv[1]), int(sys.argv[2])
fl.Server  # is imported by this
before = peak()
model = {name: np.zeros(size // 16, np.float32) for name in "abcd"}
options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
with fl.Server(model, options, min_clients=clients, memory_limit=3 * size) as server:
    del model
    print(server.netloc.port, flush=True)
    for report in server.rounds(3):
        assert len(report.clients) == clients, report.failures
    assert all((array == 3).all() for array in server.model.values())
print(peak() - before)
"""

CLIENTS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import fl, netq

def train(model, config):
    for array in model.values():
        array += 1
    return fl.Update(model, 1)

options = lambda: netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", int(sys.argv[2])))
with ThreadPoolExecutor(int(sys.argv[1])) as pool:
    for run in [pool.submit(fl.Client(train).run, options()) for _ in range(int(sys.argv[1]))]:
        run.result()
"""


@pytest.mark.slow
@pytest.mark.alone  # what a client has sent stays, if it stands still for half a second while others wait
def test_peak_memory_is_three_models() -> None:
    clients = 6
    command = [sys.executable, "-c", SERVER, str(clients), str(MODEL)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            subprocess.run([sys.executable, "-c", CLIENTS, str(clients), port], check=True, timeout=60)
            taken = int(server.stdout.read())
        finally:
            server.kill()
    print(f"\n{clients} clients: {taken / MODEL:.2f} models of {MODEL / 1e6:.0f} MB")
    assert taken < 3.25 * MODEL
