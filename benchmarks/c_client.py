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
from functools import partial
from pathlib import Path
from typing import NamedTuple

import netq
from benchmarks.meter import pin
from benchmarks.table import align

_SOURCE = Path(__file__).parent.parent / "examples/c/netq.c"
_AHEAD = 4096  # messages on their way, as in netq.c
_WINDOW = 4 * 1024**2  # bytes, as in netq.c
_LIMIT = 120.0  # seconds for one measurement


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
    rows = [["", "", "C", "Python", "C / Python"], ["---"] * 5]
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        for question in QUESTIONS:
            task = question._replace(messages=max(1, round(question.messages * options.scale)))
            clients = (partial(_run_c, program), _run_python)
            turns = [[task.figure(_turn(task, client)) for client in clients] for _ in range(options.turns)]
            c, python = (statistics.median(figures) for figures in zip(*turns, strict=True))
            digits = 2 if task.unit == "GB/s" else 1 if task.way == "round" else 0
            shown = [f"{figure:,.{digits}f}" for figure in (c, python)]
            rows.append([task.title, task.unit, *shown, f"{c / python:.2f}"])
    print("\n".join(align(rows)))


def build(folder: Path) -> Path:
    """Compile the client."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        sys.exit("error: no C compiler; `apt install gcc` brings one")
    program = folder / "netq-client"
    subprocess.run([compiler, "-std=c11", "-O2", "-o", program, _SOURCE, "-lm"], check=True)
    return program


def _turn(task: Question, client: Callable[[Question, int], float]) -> float:
    """Return the seconds that a client has measured."""
    command = _python("serve", *_words(task))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=partial(pin, 0)) as server:
        assert server.stdout is not None
        try:
            seconds = client(task, int(server.stdout.readline()))
            server.wait(_LIMIT)
        finally:
            server.kill()
    return seconds


def _words(task: Question) -> list[str]:
    return [task.way, str(task.size), str(task.messages)]


def _python(function: str, *words: str) -> list[str]:
    return [sys.executable, "-c", f"from benchmarks import c_client; c_client.{function}()", *words]


def _options(port: int) -> netq.CommunicatorOptions:
    return netq.CommunicatorOptions(
        netloc=netq.NetworkLocation("127.0.0.1", port),
        connection=netq.ConnectionOptions(window=_WINDOW, queue_bytes=2**40),
        serialization=netq.SerializationOptions(lambda stream: stream, lambda data: data),
    )


def serve() -> None:
    """Be the server of one measurement. Prints its port."""
    way, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    data = bytes(size)
    with netq.new(purpose=netq.Purpose.SERVER, options=_options(0)) as queue:
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
            futures[number - _AHEAD].result(_LIMIT)


def _run_c(program: Path, task: Question, port: int) -> float:
    return _figure([str(program), "bench", "127.0.0.1", str(port), *_words(task)])


def _run_python(task: Question, port: int) -> float:
    return _figure(_python("client", str(port), *_words(task)))


def _figure(command: list[str]) -> float:
    output = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=_LIMIT, preexec_fn=partial(pin, 1)
    ).stdout
    return float(output)


def client() -> None:
    """Do what `netq-client bench` does, and print the seconds."""
    port, way, size, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    data = bytes(size)
    with netq.new(options=_options(port)) as queue:
        while not queue.statistics():
            time.sleep(0.001)
        times = []
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
