"""python -m benchmarks.simulation: clients a second of fl, of Flower on Ray and of pfl-research, with the same task.

Writes docs/reference/benchmarks-simulation.md. Runs in the environment of Flower's tests, which has Ray; pfl has one of
its own (NETQ_BENCH_PFL: its interpreter; without it that row is left out).
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.broker import free_port
from benchmarks.federation.processes import Failed, Processes
from benchmarks.federation.rows import OFFLINE, write_app
from netq.bench.output import markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "benchmarks-simulation.md"
PFL = os.environ.get("NETQ_BENCH_PFL", "")
TOP = """\
# Simulations, compared

Written by `make bench-simulation` (`python -m benchmarks.simulation --repeat {repeat}`), which writes it again: do not
edit.

Each client has ten of scikit-learn's digits, trains a softmax regression of 650 float32 for one step, and is averaged
with all others (FedAvg, no evaluation). In all rows but pfl's the step is the same function of numpy; pfl's is torch's,
in one process. The loop is one process, too: it copies the model, takes the step and adds, for each client. Each row is
run {repeat} time(s), in turn, with all its processes on the same two cores. Clients a second are those of a round, the
median of all rounds except the first of each run; "× fl" is how many times as many fl's processes do, of the rows with
as many clients. Memory is the peak of the sum over all processes of a row (PSS: shared memory counts once), measured
every 0.2 s. The accuracy is that of the last model on all 1,797 digits; it is the same where clients, rounds and
arithmetic are.

Machine: {machine}. flwr {flwr}, ray {ray}, pfl {pfl}, Python {python}.

"""


@dataclass(frozen=True)
class Row:
    """A simulation. run: starts it, and returns when it is over."""

    name: str
    clients: int
    rounds: int
    run: Callable[[Processes, int, int], None]

    @property
    def title(self) -> str:
        """Its name and its clients."""
        return f"{self.name}, {self.clients:,} clients"


def _ours(engine: str) -> Callable[[Processes, int, int], None]:
    def run(processes: Processes, clients: int, rounds: int) -> None:
        processes.wait(processes.python("benchmarks.simulation.ours", engine, str(clients), str(rounds)))

    return run


def _loop(processes: Processes, clients: int, rounds: int) -> None:
    processes.wait(processes.python("benchmarks.simulation.loop", str(clients), str(rounds)))


def _flower(processes: Processes, clients: int, rounds: int) -> None:
    port, text = free_port(), "from benchmarks.simulation.app import {0}\n\napp = {0}\n"
    write_app(processes.folder, port, text.format("client_app"), text.format("server_app"))
    host = ["--host=127.0.0.1", f"--port={port}", "--isolation=subprocess"]
    processes.start("flower-superlink", "--insecure", "--simulation", *host)
    processes.until_listens(port)
    config = f"client-resources-num-cpus=1 num-supernodes={clients}"
    processes.wait(processes.start("flwr", "run", ".", "mine", "--stream", "--federation-config", config))


def _pfl(processes: Processes, clients: int, rounds: int) -> None:
    if not PFL:
        raise Failed("NETQ_BENCH_PFL names no interpreter")
    processes.wait(processes.start(PFL, "-m", "benchmarks.simulation.pfl_side", str(clients), str(rounds)))


ROWS = (
    Row("fl, processes", 1_000, 12, _ours("processes")),
    Row("fl, Ray", 1_000, 12, _ours("ray")),
    Row("fl, network", 500, 6, _ours("network")),
    Row("Flower on Ray", 1_000, 4, _flower),
    Row("pfl", 1_000, 6, _pfl),
    Row("numpy, a loop", 1_000, 12, _loop),
    Row("fl, processes", 100_000, 4, _ours("processes")),
    Row("fl, Ray", 100_000, 4, _ours("ray")),
    Row("pfl", 100_000, 2, _pfl),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the rows that the command line names; print the page, and write it after a run of all rows."""
    parser = argparse.ArgumentParser("python -m benchmarks.simulation", description="clients a second of simulations")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each row (default: 3)")
    titles = [row.title for row in ROWS]
    parser.add_argument("--only", nargs="+", default=titles, metavar="ROW", help="rows, by the begin of their titles")
    args = parser.parse_args(arguments)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    rows = [row for row in ROWS if row.title.startswith(tuple(args.only))]
    found: dict[Row, list[dict[str, Any]]] = {row: [] for row in rows}
    for _ in range(args.repeat):
        for row in rows:
            figures = _measure(row)
            print(f"{row.title}: {figures}", file=sys.stderr, flush=True)
            if figures is not None:
                found[row].append(figures)
    text = _text(found, args.repeat)
    print(text)
    if len(rows) == len(ROWS):
        PAGE.write_text(text, encoding="utf-8")


def _measure(row: Row) -> dict[str, Any] | None:
    counts = {"SIMULATION_CLIENTS": str(row.clients), "SIMULATION_ROUNDS": str(row.rounds)}
    with Processes({**OFFLINE, **counts}) as processes:
        try:
            row.run(processes, row.clients, row.rounds)
            return processes.figures()
        except Failed as error:
            print(f"{row.title} has failed:\n{error}", file=sys.stderr, flush=True)
            return None


def _text(found: Mapping[Row, list[dict[str, Any]]], repeat: int) -> str:
    versions = {name: metadata.version(name) for name in ("flwr", "ray")} | {"python": platform.python_version()}
    top = TOP.format(repeat=repeat, machine=page.machine(), pfl=_pfl_version(), **versions)
    head = ["", "clients", "clients/s", "× fl", "memory, MB", "accuracy"]
    return "\n".join([top.rstrip(), "", *markdown([head, *_lines(found)]), ""])


def _lines(found: Mapping[Row, list[dict[str, Any]]]) -> Iterator[list[str]]:
    rates = {
        row: statistics.median(row.clients / seconds for run in runs for seconds in run["seconds"])
        for row, runs in found.items()
        if runs
    }
    for row, runs in found.items():
        if row not in rates:
            yield [row.name, f"{row.clients:,}", "it failed here", "", "", ""]
            continue
        base = next(
            (rates[other] for other in rates if (other.name, other.clients) == (ROWS[0].name, row.clients)), 0.0
        )
        memory = max(run["peak"] for run in runs) / 1e6
        ratio = f"{base / rates[row]:.1f}" if base else ""
        yield [row.name, f"{row.clients:,}", f"{rates[row]:,.0f}", ratio, f"{memory:,.0f}", f"{runs[0]['value']:.4f}"]


def _pfl_version() -> str:
    if not PFL:
        return "not here"
    code = "from importlib.metadata import version; print(version('pfl'))"
    return subprocess.run([PFL, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
