"""What 50 readers of a live page cost a federation: seconds of a round without readers and with them, in turn.

    python -m benchmarks.federation.readers

A simulation of 16 clients with a model of 10 MB, in two processes; the readers are another process, with a stream of
server-sent events each.
"""

from __future__ import annotations

import http.client
import multiprocessing
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np

import fl

_READERS, _CLIENTS, _ROUNDS, _TURNS = 50, 16, 30, 5
_SIZE = 2_500_000  # float32 numbers


def _train(model: Any, config: Any) -> fl.Update:
    loss = 1 / config["round"]
    return fl.Update({"w": model["w"] + np.float32(1)}, 1, {"loss": loss, "accuracy": 1 - loss})


def _read(port: int, count: int, ready: Event) -> None:
    """Read the streams of so many readers, until the process is ended."""

    def follow() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/events")
        answer = connection.getresponse()
        arrived.release()
        while answer.read1(65536):
            pass

    arrived = threading.Semaphore(0)
    for _ in range(count):
        threading.Thread(target=follow, daemon=True).start()
    for _ in range(count):
        arrived.acquire()
    ready.set()
    threading.Event().wait()


@contextmanager
def _readers(port: int, count: int) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_read, args=(port, count, ready), daemon=True)
    process.start()
    ready.wait()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _seconds(count: int) -> float:
    """Return the median of the seconds of a round with so many readers."""
    model = {"w": np.zeros(_SIZE, np.float32)}
    with fl.Page(0) as page, _readers(page.port, count):
        result = fl.simulate(model, [_train] * _CLIENTS, _ROUNDS, processes=2, seed=1, progress=False, callbacks=[page])
    return statistics.median(report.seconds for report in result.reports[2:])


def main() -> None:
    """Print a line for each turn, and the ratio of the medians."""
    without, with_them = list[float](), list[float]()
    for _ in range(_TURNS):
        without.append(_seconds(0))
        with_them.append(_seconds(_READERS))
        print(
            f"no reader {1000 * without[-1]:.1f} ms a round, {_READERS} readers {1000 * with_them[-1]:.1f} ms",
            flush=True,
        )
    ratio = statistics.median(with_them) / statistics.median(without)
    print(f"median of {_TURNS}: {ratio:.3f} times (goal: 1.03 at most)")


if __name__ == "__main__":
    main()
