"""python -m benchmarks.federation: measure rounds of fl and Flower, a server with more clients, and kernels.

Writes docs/reference/benchmarks-federation.md.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.federation import kernel, work
from benchmarks.federation.processes import Failed, Processes
from benchmarks.federation.rows import OFFLINE, ROWS, SIZES, Row
from netq.bench.output import markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "benchmarks-federation.md"
TOP = """\
# Rounds, compared with Flower's

Written by `make bench-federation` (`python -m benchmarks.federation --repeat {repeat}`), which writes it again: do not
edit.

A model of {mb} MB, ten float32 arrays; {clients} clients that add 1 to it and send it back; FedAvg, train only, over
loopback. Each row is run {repeat} time(s), in turn, with all its processes on the same two cores. Seconds are the
median of all rounds except the first of each run, with the fastest and the slowest in brackets. Memory is the peak of
the sum over all processes of a row (PSS: shared memory counts once), measured every 0.2 s. Flower's deployment spends
time on a process for each message, on storage and on hashing. A SuperLink needs them to serve many runs at once; fl
does not have them.

Machine: {machine}. flwr {flwr}, ray {ray}, Python {python}.

"""
SIZES_PART = """\

## The server's memory

fl over TCP, with a process for each client: the peak memory of the server's process, with its interpreter and numpy, in
MB and in models. The goal is three models and 100 MB. The last model is larger than the limit of a protobuf message.

"""
KERNELS = """\

## Folding

The rate is the bytes of a model of {mb} MB in float32 (half of that in the other dtypes) a second, in one pinned
thread. The ratio compares it with numpy's copy of as many bytes. Both are medians of {turns} turns; in each turn all
kernels run once. A fold reads update and mean, checks that the update is finite, and writes the mean; a round of one
also makes the next model. The check of float32 is a product of numpy's BLAS, whose own threads are not pinned. The goal
is 0.5 for float32.

"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the rows that the command line names; print the page, and write it after a run of all rows."""
    parser = argparse.ArgumentParser("python -m benchmarks.federation", description="rounds, compared with Flower's")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each row (default: 2)")
    parser.add_argument(
        "--only", nargs="+", default=[row.name for row in (*ROWS, *SIZES)], metavar="ROW", help="rows by name"
    )
    args = parser.parse_args(arguments)
    rows = [row for row in (*ROWS, *SIZES) if row.name in args.only]
    found: dict[str, list[dict[str, Any]]] = {row.name: [] for row in rows}
    for turn in range(args.repeat):
        for row in (
            rows if turn == 0 else [row for row in rows if row in ROWS]
        ):  # the memory of SIZES does not vary: one run
            figures = _measure(row)
            print(f"{row.name}: {figures}", file=sys.stderr, flush=True)
            if figures is not None:
                found[row.name].append(figures)
    text = _text(found, args.repeat)
    print(text)
    if len(rows) == len(ROWS) + len(SIZES) and work.MODEL_MB == 100:
        PAGE.write_text(text, encoding="utf-8")


def _text(found: Mapping[str, list[dict[str, Any]]], repeat: int) -> str:
    sizes = {row.name: found[row.name] for row in SIZES if row.name in found}
    rounds = {row.name: found[row.name] for row in ROWS if row.name in found}
    kernels = [[name, f"{rate / 1e9:.2f}", f"{ratio:.2f}"] for name, (rate, ratio) in kernel.measure().items()]
    versions = {name: metadata.version(name) for name in ("flwr", "ray")} | {"python": platform.python_version()}
    top = TOP.format(repeat=repeat, mb=work.MODEL_MB, clients=work.CLIENTS, machine=page.machine(), **versions)
    lines = [
        *(top.rstrip(), "", *markdown([["", "s/round", "× fl, TCP", "memory, MB", "× fl, TCP"], *_rounds(rounds)])),
        *(SIZES_PART.rstrip(), "", *markdown([["", "s/round", "server, MB", "models"], *_peaks(sizes)])),
        KERNELS.format(mb=work.MODEL_MB, turns=kernel.TURNS).rstrip(),
        "",
        *markdown([["", "GB/s", "× a copy"], *kernels]),
    ]
    return "\n".join([*lines, ""])


def _measure(row: Row) -> dict[str, Any] | None:
    with Processes({**OFFLINE, **row.environment}) as processes:
        try:
            row.run(processes)
            figures = processes.figures()
        except Failed as error:
            print(f"{row.name} has failed:\n{error}", file=sys.stderr, flush=True)
            return None
    if figures["value"] != work.ROUNDS:
        raise AssertionError(f"{row.name}: the model is {figures['value']} after {work.ROUNDS} rounds")
    return figures


def _rounds(found: Mapping[str, list[dict[str, Any]]]) -> Iterator[list[str]]:
    seconds = {name: [s for each in runs for s in each["seconds"]] for name, runs in found.items() if runs}
    memory = {name: max(each["peak"] for each in runs) / 1e6 for name, runs in found.items() if runs}
    first = next(iter(seconds), "")
    for name in found:
        if name not in seconds:
            yield [name, "it failed here", "", "", ""]
            continue
        middle, base = statistics.median(seconds[name]), statistics.median(seconds[first])
        spread = f"{min(seconds[name]):.2f} to {max(seconds[name]):.2f}"
        ratio = f"{memory[name] / memory[first]:.1f}"
        yield [name, f"{middle:.2f} ({spread})", f"{middle / base:.1f}", f"{memory[name]:.0f}", ratio]


def _peaks(found: Mapping[str, list[dict[str, Any]]]) -> Iterator[list[str]]:
    for name, runs in found.items():
        if not runs:
            yield [name, "it failed here", "", ""]
            continue
        (run,), megabytes = runs, int(name.split()[-2])
        seconds, server = statistics.median(run["seconds"]), run["server"] / 1e6
        yield [name, f"{seconds:.2f}", f"{server:.0f}", f"{server / megabytes:.2f}"]


if __name__ == "__main__":
    main()
