"""Large messages of each type that has bytes: `python -m benchmarks.bytes [MIB] [ROUNDS]`, 128 and 5 by default.

Prints how fast a message of MIB goes to another process over TCP, whose `get` returns it with the type that it had: the
median of the rounds, each with all types. The clock stops when a small answer is back. pyzmq sends and loads the same
objects with `send_pyobj` and `recv_pyobj`.
"""

from __future__ import annotations

import array
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import zmq

import netq
from benchmarks.table import align

MIB = 1024**2
_LIMIT = 60.0  # seconds for a message


def values(size: int) -> dict[str, Any]:
    """Return what is sent, by its title: `size` bytes of each type."""
    numbers = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    content, tenth = numbers.tobytes(), size // 10
    return {
        "array of numpy": numbers,
        "bytes": content,
        "bytearray": bytearray(content),
        "pickle.PickleBuffer": pickle.PickleBuffer(content),
        "array.array": array.array("B", content),
        "dict of ten bytes": {str(part): content[part * tenth : (part + 1) * tenth] for part in range(10)},
        "dict of ten arrays": {str(part): numbers[part * tenth : (part + 1) * tenth] for part in range(10)},
        "tensor of torch": torch.from_numpy(numbers),
    }


class Times:
    """Seconds of a message until the answer, and of the call that sends it, for each round."""

    def __init__(self) -> None:
        self.whole: list[float] = []
        self.put: list[float] = []

    def measure(self, put: Callable[[Any], object], answer: Callable[[], object], value: Any) -> None:
        """Send a value, and wait for the answer."""
        begin = time.perf_counter()
        put(value)
        self.put.append(time.perf_counter() - begin)
        answer()
        self.whole.append(time.perf_counter() - begin)


def main(mib: int = 128, rounds: int = 5) -> None:
    sent = values(mib * MIB)
    with _receiver("netq_receives") as port, _netq(port) as (put, answer):
        ours = _rounds(put, answer, sent, rounds)
    with _receiver("zmq_receives") as port, _zmq(port) as (put, answer):
        theirs = _rounds(put, answer, sent, rounds)
    first = _speed(ours["array of numpy"], mib)
    rows = [[f"{mib} MiB", "netq, GB/s", "× array", "put, ms", "pyzmq, GB/s"], ["---"] * 5]
    for title in sent:
        speed, put_time = _speed(ours[title], mib), 1000 * statistics.median(ours[title].put)
        peer = f"{_speed(theirs[title], mib):.2f}" if title in theirs else "cannot"
        rows.append([title, f"{speed:.2f}", f"{speed / first:.2f}", f"{put_time:.1f}", peer])
    print("\n".join(align(rows)))


def _speed(times: Times, mib: int) -> float:
    return mib * MIB / statistics.median(times.whole) / 1e9


def _rounds(
    put: Callable[[Any], object], answer: Callable[[], object], sent: dict[str, Any], rounds: int
) -> dict[str, Times]:
    found: dict[str, Times] = {}
    for number in range(rounds + 1):
        for title, value in sent.items():
            try:
                times = Times() if number <= 1 else found[title]  # the first round warms up
                times.measure(put, answer, value)
                found[title] = times
            except (TypeError, KeyError):  # pickle.PickleBuffer needs a protocol that send_pyobj does not take
                continue
    return found


@contextmanager
def _receiver(function: str) -> Iterator[int]:
    """Run a function of this module in a process; yield the port that it prints."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bytes", function], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@contextmanager
def _netq(port: int) -> Iterator[tuple[Callable[[Any], object], Callable[[], object]]]:
    with netq.new("tcp", "client", netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port))) as queue:
        yield queue.put, lambda: queue.get(timeout=_LIMIT)


def netq_receives() -> None:
    """Answer each message of one client, until it closes."""
    with netq.new("tcp", "server", netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))) as queue:
        print(queue.netloc.port, flush=True)
        peer = queue.get().peer
        try:
            while True:
                queue.put(None, peer)
                queue.get(peer)
        except netq.Closed:
            pass


@contextmanager
def _zmq(port: int) -> Iterator[tuple[Callable[[Any], object], Callable[[], object]]]:
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.RCVTIMEO, int(1000 * _LIMIT))
        socket.connect(f"tcp://127.0.0.1:{port}")
        yield lambda value: socket.send_pyobj(value, protocol=5), socket.recv
        socket.send(b"")


def zmq_receives() -> None:
    """Answer each message, until an empty one comes."""
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
        while data := socket.recv():
            pickle.loads(data)
            socket.send(b"")


if __name__ == "__main__":
    if sys.argv[1:2] in (["netq_receives"], ["zmq_receives"]):
        globals()[sys.argv[1]]()
    else:
        main(*map(int, sys.argv[1:]))
