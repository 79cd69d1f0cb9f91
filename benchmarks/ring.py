"""The ring socket by size, compared with sockets and pipes: `python -m benchmarks.ring`, a minute or two.

For each size from 4 bytes to 1 MiB: a round trip (p50, p99, p99.9, µs) and one way (GB/s); and Jocket's figure, a PING
of 4 bytes that is answered by a PONG of 1024 (https://github.com/pcdv/jocket). Two processes on two cores for each
peer, the peers in turn, round after round; medians of the rounds, and ratios to the TCP socket.

`--spin 0 20 50` compares settings of the ring socket instead: microseconds for which each wait spins. So does `--piece
32 64 128`: KiB that are copied at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.blocking import Wire
from benchmarks.load import percentile
from benchmarks.measure import ROOT
from benchmarks.meter import pin
from benchmarks.table import align
from benchmarks.task import Place
from netq.shm.ring_options import SPIN

SIZES = [4, 64, 1024, 4096, 16 * 1024, 64 * 1024, 256 * 1024, 1024 * 1024]
PEERS = {
    "ring, spinning": ("ring_socket", ""),
    "ring, waiting": ("ring_socket", "0"),
    "pure ring": ("ring", ""),  # never sleeps, and does not notice the end of its peer
    "TCP": ("raw", ""),
    "Unix": ("unix", ""),
    "pipe": ("pipe", ""),
}
REFERENCE = "TCP"
SECONDS = 0.1  # for each figure: 17 figures, 6 peers and 3 rounds take some 30 s, and the processes' starts as long
_PERCENTS = (50, 99, 99.9)
_MOST = 20_000  # round trips in one figure
_ACK = 1


class Case(NamedTuple):
    """What is measured: `reply` bytes answer each message; 0: one way."""

    size: int
    reply: int

    @property
    def title(self) -> str:
        return _bytes(self.size) if self.reply in (0, self.size) else f"{_bytes(self.size)} → {_bytes(self.reply)}"


CASES = [Case(4, 1024), *(Case(size, size) for size in SIZES), *(Case(size, 0) for size in SIZES)]


def client(wire: Wire, cases: Sequence[Case], seconds: float) -> list[list[float]]:
    """Measure; return for each case the percentiles in µs, or GB/s."""
    return [_round_trips(wire, case, seconds) if case.reply else _one_way(wire, case, seconds) for case in cases]


def server(wire: Wire, cases: Sequence[Case]) -> None:
    """Answer until each case is over. The client says before each part how many messages come."""
    for case in cases:
        while count := int.from_bytes(wire.receive(8), "little"):
            reply = bytes(case.reply or _ACK)
            for left in range(count, 0, -1):
                wire.receive(case.size)
                if case.reply or left == 1:
                    wire.send(reply)


def _round_trips(wire: Wire, case: Case, seconds: float) -> list[float]:
    data, clock = bytes(case.size), time.perf_counter_ns

    def trips(count: int) -> list[int]:
        times = []
        wire.send(count.to_bytes(8, "little"))
        for _ in range(count):
            sent = clock()
            wire.send(data)
            wire.receive(case.reply)
            times.append(clock() - sent)
        return times

    warm = statistics.median(trips(50)[10:])
    times = trips(min(max(int(seconds * 1e9 / warm), 20), _MOST))
    wire.send(bytes(8))
    return [percentile(times, percent) / 1000 for percent in _PERCENTS]


def _one_way(wire: Wire, case: Case, seconds: float) -> list[float]:
    data = bytes(case.size)

    def stream(count: int) -> float:
        began = time.perf_counter()
        wire.send(count.to_bytes(8, "little"))
        for _ in range(count):
            wire.send(data)
        wire.receive(_ACK)
        return time.perf_counter() - began

    warm = stream(20)
    count = max(int(20 * seconds / warm), 20)
    took = stream(count)
    wire.send(bytes(8))
    return [count * case.size / took / 1e9]


def _side(arguments: argparse.Namespace) -> None:
    """Be one of the two processes."""
    import importlib

    given = json.loads(arguments.side)
    peer: Any = importlib.import_module(f"benchmarks.peers.{given['module']}")
    place = Place("127.0.0.1", given["port"], Path(given["folder"]), given["variant"])
    cases = [Case(*case) for case in given["cases"]]
    pin(0 if given["is_client"] else 1)
    wire = peer.connect(place) if given["is_client"] else peer.listen(place, lambda: print("ready", flush=True))
    if given["is_client"]:
        print(json.dumps(client(wire, cases, given["seconds"])))
    else:
        server(wire, cases)
    wire.close()


def _start(given: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.ring", "--side", json.dumps(given)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def measure(module: str, variant: str, cases: Sequence[Case], seconds: float, folder: Path) -> list[list[float]]:
    """Run two processes; return what the client has measured."""
    from benchmarks import broker

    given = {"module": module, "variant": variant, "cases": cases, "seconds": seconds, "folder": str(folder)}
    given["port"] = broker.free_port()
    with _start(given | {"is_client": False}) as server:
        assert server.stdout is not None
        server.stdout.readline()
        with _start(given | {"is_client": True}) as client:
            out, _ = client.communicate(timeout=120)
    found: list[list[float]] = json.loads(out)
    return found


def _tables(results: dict[str, list[list[list[float]]]], cases: Sequence[Case]) -> list[str]:
    lines = []
    for what, title, wanted in (
        ("Round trip: p50 / p99 / p99.9, µs (p50, × TCP)", "bytes there → back", True),
        ("One way, GB/s (× TCP)", "bytes", False),
    ):
        rows = [[title, *results], ["---"] * (1 + len(results))]
        for number, case in enumerate(cases):
            if bool(case.reply) is wanted:
                rows.append([case.title, *_cells(results, number)])
        lines += [f"{what}:", "", *align(rows), ""]
    return lines


def _cells(results: dict[str, list[list[list[float]]]], number: int) -> list[str]:
    medians = {
        name: [statistics.median(values) for values in zip(*[figures[number] for figures in rounds], strict=True)]
        for name, rounds in results.items()
    }
    base = medians[REFERENCE][0]
    return [f"{' / '.join(map(_digits, each))} ({each[0] / base:.2f})" for each in medians.values()]


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def _bytes(size: int) -> str:
    if size >= 1024**2:
        return f"{size // 1024**2} MiB"
    return f"{size // 1024} KiB" if size >= 1024 else f"{size} B"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ring", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each peer (default: 3)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for each figure (default: {SECONDS})")
    parser.add_argument("--spin", nargs="+", metavar="µs", help="compare these settings of the ring socket")
    parser.add_argument("--piece", nargs="+", metavar="KiB", help="compare these pieces of the ring socket")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.side:
        return _side(args)
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("one core; two are needed")
    peers = PEERS
    if args.spin or args.piece:
        peers = {f"spin {spin} µs": ("ring_socket", spin) for spin in args.spin or ()}
        peers |= {f"piece {piece} KiB": ("ring_socket", f"{SPIN * 1e6:g} {piece}") for piece in args.piece or ()}
        peers |= {REFERENCE: PEERS[REFERENCE]}
    results: dict[str, list[list[list[float]]]] = {name: [] for name in peers}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            for name, (module, variant) in peers.items():
                results[name].append(measure(module, variant, CASES, args.seconds, Path(folder)))
    print("\n".join(_tables(results, CASES)))
    return None


if __name__ == "__main__":
    main()
