"""python -m benchmarks: echoes between two processes on two cores, over TCP and TLS; a line a figure.

The two sides are pinned to different cores, where there are two, and alternate between TCP and TLS, so that
what else the machine does hits both alike. The server is benchmarks/echo.py, a process of its own.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import netq
from benchmarks.echo import MemoryPeak, pin
from netq.security import certificates

ECHOES = 10_000
REPEATS = 5
LARGE = 100 * 1024**2  # bytes

Figures = dict[str, Any]


def main() -> None:
    pin(0)
    runs: dict[str, list[Figures]] = {"tcp": [], "tls": []}
    with tempfile.TemporaryDirectory() as folder:
        files = certificates.make(Path(folder))
        for _ in range(REPEATS):
            for name, figures in runs.items():
                figures.append(measure(files if name == "tls" else None))
    for name, figures in runs.items():
        for key in figures[0]:
            values = [each[key] for each in figures]
            print(f"{name}  {key:44} median {statistics.median(values):10.3f}   {min(values):.3f} to {max(values):.3f}")


def measure(files: certificates.Files | None) -> Figures:
    with echo(files) as queue:
        queue.put(b"").result(30)
        queue.get(timeout=30)
        return {**small(queue), **round_trips(queue), **large(queue)}


def small(queue: netq.Communicator) -> Figures:
    """10,000 objects of 1 KiB there and back, all at once: each exactly once, in order."""
    begin = time.perf_counter()
    for number in range(ECHOES):
        queue.put((number, bytes(1024)))
    numbers = [queue.get(timeout=30).data[0] for _ in range(ECHOES)]
    seconds = time.perf_counter() - begin
    assert numbers == list(range(ECHOES)), "lost, doubled, or out of order"
    return {"echoes of 1 KiB, 10,000 in flight, per second": ECHOES / seconds}


def round_trips(queue: netq.Communicator) -> Figures:
    """One object of 64 bytes at a time."""
    times = []
    for _ in range(2000):
        begin = time.perf_counter()
        queue.put(bytes(64))
        queue.get(timeout=30)
        times.append(time.perf_counter() - begin)
    return {"round trip of 64 bytes, microseconds": statistics.median(times) * 1e6}


def large(queue: netq.Communicator) -> Figures:
    """100 MiB of float32 there and back, once: into fresh memory."""
    array = np.random.default_rng(0).random(LARGE // 4, np.float32)
    queue.put("watch your memory").result(30)
    queue.get(timeout=30)
    with MemoryPeak() as mine:
        begin = time.perf_counter()
        queue.put(array)
        back = queue.get(timeout=60).data
        seconds = time.perf_counter() - begin
    queue.put("how much was it?")
    theirs = queue.get(timeout=30).data
    assert np.array_equal(array, back), "the bytes differ"
    return {
        "100 MiB of float32 and back, GB/s each way": 2 * LARGE / seconds / 1e9,
        "  extra peak memory of the client, x message": mine.extra / LARGE,
        "  extra peak memory of the server, x message": theirs / LARGE,
    }


@contextmanager
def echo(files: certificates.Files | None) -> Iterator[netq.Communicator]:
    """Start the server's process, and give a client of it."""
    arguments = [] if files is None else [str(files.key), str(files.certificate)]
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.echo", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        options = netq.CommunicatorOptions(
            netloc=netq.NetworkLocation("127.0.0.1", int(process.stdout.readline())),
            security=None if files is None else netq.SecurityOptions(certificate=files.authority),
        )
        with netq.new(options=options) as queue:
            yield queue


if __name__ == "__main__":
    main()
