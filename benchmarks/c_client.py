"""The client in C (examples/c) next to the client in Python, each with the same server in Python.

    python -m benchmarks.c_client [--turns 5]

The server is pinned to the first core, the client to the second. A turn measures the client in C, then the one in
Python, each in new processes and over TCP without TLS. Both send and receive plain bytes, and have the same windows.
One way, the time is from the first message until the last has arrived and been answered (up) or received (down).
A round trip is the median of a turn. Prints medians over the turns.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import netq
from benchmarks.child import BYTES, LIMIT, local, output, python, serving
from netq.bench.output import markdown

_SOURCE = Path(__file__).parent.parent / "examples/c/netq.c"
_AHEAD = 4096  # messages on their way, as in netq.c
_WINDOW = 4 * 1024**2  # bytes, as in netq.c


class Question(NamedTuple):
    """What to measure: `way` is up, down or round, `size` is bytes."""

    title: str
    way: str
    size: int
    messages: int
    unit: str

    def figure(self, seconds: float) -> float:
        """Return the figure of a turn, in `unit`."""
        if self.way == "round":
            return seconds * 1e6
        return self.size * self.messages / seconds / 1e9 if self.unit == "GB/s" else self.messages / seconds


QUESTIONS = [
    Question("to the server, 64 bytes", "up", 64, 200_000, "messages/s"),
    Question("to the server, 2 MiB", "up", 2 * 1024**2, 1000, "GB/s"),
    Question("from the server, 64 bytes", "down", 64, 200_000, "messages/s"),
    Question("from the server, 2 MiB", "down", 2 * 1024**2, 1000, "GB/s"),
    Question("round trip, 64 bytes", "round", 64, 10_000, "p50, µs"),
]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("benchmarks.c_client", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of messages")
    options = parser.parse_args()
    rows = [["", "", "C", "Python", "C / Python"]]
    with tempfile.TemporaryDirectory() as folder:
        in_c = [str(build(Path(folder))), "bench", "127.0.0.1"]
        for question in QUESTIONS:
            task = question._replace(messages=max(1, round(question.messages * options.scale)))
            clients = (in_c, python(client))
            turns = [[task.figure(turn(task, command)) for command in clients] for _ in range(options.turns)]
            c, python_ = (statistics.median(figures) for figures in zip(*turns, strict=True))
            digits = 2 if task.unit == "GB/s" else 1 if task.way == "round" else 0
            shown = [f"{figure:,.{digits}f}" for figure in (c, python_)]
            rows.append([task.title, task.unit, *shown, f"{c / python_:.2f}"])
    print("\n".join(markdown(rows)))


def build(folder: Path) -> Path:
    """Compile the client."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        sys.exit("error: no C compiler; `apt install gcc` brings one")
    program = folder / "netq-client"
    subprocess.run([compiler, "-std=c11", "-O2", "-o", program, _SOURCE, "-lm"], check=True)
    return program


def turn(task: Question, command: list[str]) -> float:
    """Return the seconds that a client has measured."""
    words = task.way, task.size, task.messages
    with serving(serve, *words) as port:
        return output([*command, *map(str, (port, *words))])


def serve(way: str, size: str, messages: str) -> None:
    """Be the server of one measurement. Prints its port."""
    data, count = bytes(int(size)), int(messages)
    with netq.new(purpose=netq.Purpose.SERVER, options=local(0, BYTES, window=_WINDOW)) as queue:
        print(queue.netloc.port, flush=True)
        for _ in range(count if way != "down" else 1):
            peer, _ = queue.get()
            if way == "round":
                queue.put(data, peer)
        if way != "round":
            _send(queue.put, data, count if way == "down" else 1, peer)


def _send(put: Callable[..., Future[None]], data: bytes, count: int, *peer: object) -> None:
    """Put messages, with few enough on their way."""
    futures: list[Future[None]] = []
    for number in range(count):
        futures.append(put(data, *peer))
        if number >= _AHEAD:
            futures[number - _AHEAD].result(LIMIT)


def client(port: str, way: str, size: str, messages: str) -> None:
    """Do what `netq-client bench` does, and print the seconds."""
    data, count, times = bytes(int(size)), int(messages), []
    with netq.new(options=local(int(port), BYTES, window=_WINDOW)) as queue:
        while not queue.statistics():
            time.sleep(0.001)
        began = time.perf_counter()
        if way == "round":
            for _ in range(count):
                start = time.perf_counter()
                queue.put(data)
                queue.get()
                times.append(time.perf_counter() - start)
        elif way == "up":
            _send(queue.put, data, count)
            queue.get()
        else:
            queue.put(data)
            for _ in range(count):
                queue.get()
        seconds = time.perf_counter() - began
    print(f"{statistics.median(times) if times else seconds:.9f}")


if __name__ == "__main__":
    main()
