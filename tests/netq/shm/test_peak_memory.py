"""A large message costs each end little more than its own size, and a gigabyte fits where little else would."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from subprocess import PIPE

import pytest

from tests.faults.test_cgroup import Cgroup

MIB, GIB = 2**20, 2**30
LIMIT = 3 * GIB // 2
MOST = 1.25  # times the message: it, and a quarter of it

BEGINNING = """
import hashlib, sys
from pathlib import Path
import numpy as np
import netq

size, cgroup = int(sys.argv[1]), sys.argv[2]
if cgroup:
    (Path(cgroup) / "cgroup.procs").write_text("0")

def memory(figure):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(figure))

def digest(array):
    return hashlib.sha256(array).hexdigest()

def options(port):
    return netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port))
"""

SERVER = (
    BEGINNING
    + """
with netq.new(netq.Protocol.SHM, netq.Purpose.SERVER, options(0)) as server:
    print(server.netloc.port, flush=True)
    assert server.get(timeout=60).data == "hello"
    before = memory("VmRSS")
    peer, data = server.get(timeout=60)
    assert digest(data) == server.get(timeout=60).data
    received = memory("VmHWM") - before
    server.put(data, peer).result(60)
    print(received / size, (memory("VmHWM") - before) / size)
"""
)

CLIENT = (
    BEGINNING
    + """
with netq.new(netq.Protocol.SHM, options=options(int(sys.argv[3]))) as client:
    data = np.random.default_rng(1).random(size // 4, dtype=np.float32)
    sum = digest(data)
    client.put("hello").result(60)
    before = memory("VmRSS")
    client.put(data).result(60)
    sent = memory("VmHWM") - before
    del data
    client.put(sum)
    got = client.get(timeout=60).data
    assert got.dtype == np.float32 and digest(got) == sum
    print(sent / size, (memory("VmHWM") - before) / size)
"""
)


def run(size: int, server_cgroup: object = "", client_cgroup: object = "") -> dict[str, list[float]]:
    """Send `size` bytes there and back; return the extra memory of each side, in messages: one way, and both."""

    def start(code: str, *args: object) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdout=PIPE, stderr=PIPE, text=True)

    with start(SERVER, size, server_cgroup) as server:
        assert server.stdout is not None
        with start(CLIENT, size, client_cgroup, server.stdout.readline().strip()) as client:
            outcomes = {"client": client.communicate(timeout=100), "server": server.communicate(timeout=100)}
    assert [errors for _, errors in outcomes.values()] == ["", ""]
    return {name: [float(figure) for figure in figures.split()] for name, (figures, _) in outcomes.items()}


@pytest.mark.slow
def test_100_mib_each_way_come_equal_and_cost_little_more_than_themselves() -> None:
    extra = run(100 * MIB)
    print(extra)
    assert all(len(figures) == 2 for figures in extra.values())
    assert all(figure <= MOST for figures in extra.values() for figure in figures), extra


@pytest.fixture
def cgroups() -> Iterator[list[Cgroup]]:
    with contextlib.ExitStack() as stack:
        try:
            made = [Cgroup(LIMIT) for _ in range(2)]
        except OSError as error:
            if os.environ.get("NETQ_FAULTS") == "must":
                raise
            pytest.skip(f"no memory cgroup can be made here: {error}")
        for cgroup in made:
            stack.callback(cgroup.remove)
        yield made


@pytest.mark.slow
def test_1_gib_each_way_where_each_side_has_one_and_a_half(cgroups: list[Cgroup]) -> None:
    run(GIB, cgroups[0].path, cgroups[1].path)
    peaks = [cgroup.peak / GIB for cgroup in cgroups]
    print(f"peaks in GiB: {peaks}")
    assert max(peaks) <= 1.25  # who holds a message pays for it, and nobody else
