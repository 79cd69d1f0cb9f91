"""What secure aggregation costs: python -m benchmarks.federation.masked. Writes docs/reference/benchmarks-masked.md.

How long does a mask of 100 MB take, here and in Flower's SecAgg+? How many bytes does a client send? How long is a
round with masks, compared with one without, and with clients that are lost in it? Needs the environment of Flower.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fl
import netq
from benchmarks import page
from benchmarks.federation.processes import LIMIT
from fl.secure.words import Words
from netq.bench.output import markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "benchmarks-masked.md"
TOP = """\
# Secure aggregation

Written by `python -m benchmarks.federation.masked --repeat {repeat}`, which writes it again: do not edit.

Machine: {machine}. Flower {flower}.

## A mask

What a client computes for each neighbour, and the server for each mask that it takes off: the mask of {values:,} words
(100 MB), added to a vector. Flower's is that of SecAgg+ (`flwr.common.secure_aggregation`), for as many numbers, by its
own function and numpy's addition. In turn, on one core; medians of {turns}.

"""
ROUNDS_TOP = """\

## A round

Ten clients, each a thread of one process, that add 1 to a model; five rounds after the first one, which has the set-up.
"Lost": {lost} of the clients send no vector in any round. Bytes are those that a client sends in a round, by those of
the model in float32. Seconds: the median of all rounds of all runs, with the fastest and the slowest.

"""
VALUES = 25_000_000
TURNS = 5
CLIENTS, LOST, COUNT = 10, 3, 6
SIZES = (0.1, 1, 10)  # MB of a model


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer the questions, and write the page."""
    parser = argparse.ArgumentParser("python -m benchmarks.federation.masked", description="secure aggregation")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each kind of round (default: 3)")
    repeat = parser.parse_args(arguments).repeat
    import flwr

    top = {"machine": page.machine(), "flower": flwr.__version__}
    lines = [*TOP.format(repeat=repeat, values=VALUES, turns=TURNS, **top).splitlines(), *_masks()]
    lines += [*ROUNDS_TOP.format(lost=LOST).splitlines(), *_rounds(repeat), ""]
    text = "\n".join(lines)
    print(text)
    PAGE.write_text(text, encoding="utf-8")


def _masks() -> list[str]:
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    words = Words.zeros(VALUES, 1)
    vector = np.zeros(VALUES, np.int64)

    def flower() -> None:
        np.add(vector, pseudo_rand_gen(os.urandom(32), 2**32, [(VALUES,)])[0], out=vector)

    ways: dict[str, Callable[[], None]] = {
        "netq, a mask alone": lambda: words.mask([os.urandom(32)]),
        "netq, one of nine masks": lambda: words.mask([os.urandom(32) for _ in range(9)]),
        "Flower, SecAgg+": flower,
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            taken[name].append((time.perf_counter() - begin) / (9 if "nine" in name else 1))
    rows = [["", "ms for 100 MB", "times netq's"]]
    least = statistics.median(taken["netq, one of nine masks"])
    for name, seconds in taken.items():
        middle = statistics.median(seconds)
        rows.append([name, f"{1000 * middle:.1f}", f"{middle / least:.1f}"])
        print(rows[-1], file=sys.stderr, flush=True)
    return markdown(rows)


def _rounds(repeat: int) -> list[str]:
    rows = [["MB", "", "s/round", "times plain", "bytes up, times the model"]]
    ways = {"plain": (None, 0), "masks": (fl.SecureAggregation(), 0), "masks, 3 lost": (fl.SecureAggregation(), LOST)}
    for size in SIZES:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(repeat):
            for name, (secure, lost) in ways.items():
                found[name] += _run(size, secure, lost)
        plain = statistics.median(seconds for seconds, _ in found["plain"])
        for name, rounds in found.items():
            seconds = sorted(each for each, _ in rounds)
            middle, up = statistics.median(seconds), statistics.median(bytes for _, bytes in rounds)
            spread = f"{middle:.3f} ({seconds[0]:.3f} to {seconds[-1]:.3f})"
            rows.append([f"{size:g}", name, spread, f"{middle / plain:.2f}", f"{up / (size * 1e6):.3f}"])
            print(rows[-1], file=sys.stderr, flush=True)
    return markdown(rows)


def _run(size: float, secure: fl.SecureAggregation | None, lost: int) -> list[tuple[float, float]]:
    """Return the seconds of each round but the first, and the bytes that each of its clients sends."""
    model = {"w": np.zeros(int(size * 1e6 / 4), np.float32)}
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    strategy, needed = fl.FedAvg(max_examples="equal"), CLIENTS - lost
    settings: dict[str, Any] = {"min_clients": needed, "wait": CLIENTS, "patience": fl.Patience(deadline=LIMIT)}
    with fl.Server(model, options, strategy=strategy, secure=secure, **settings) as server, _clients(server, lost):
        reports = list(server.rounds(COUNT))
    assert all(len(report.clients) == needed for report in reports), reports
    return [(report.seconds, report.bytes_in / needed) for report in reports[1:]]


@contextmanager
def _clients(server: fl.Server, lost: int) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_take_part, args=(server.netloc.port, lost), daemon=True)
    process.start()
    try:
        yield
    finally:
        server.close()
        process.join()


def _take_part(port: int, lost: int) -> None:
    threads = []
    for each in range(CLIENTS):
        options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port))
        threads.append(threading.Thread(target=partial(fl.Client(_train(each < lost)).run, options)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _train(is_lost: bool) -> Callable[[Any, Mapping[str, Any]], fl.Update | fl.Skip]:
    def train(model: Any, config: Mapping[str, Any]) -> fl.Update | fl.Skip:
        return fl.Skip("it is lost") if is_lost else fl.Update({"w": model["w"] + np.float32(1)}, 1)

    return train


if __name__ == "__main__":
    main()
