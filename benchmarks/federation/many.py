"""A server of fl with many clients: python -m benchmarks.federation.many. Writes docs/reference/benchmarks-many.md.

Rounds of 100 and 1,000 clients that add 1 to a model of 1 MB, over TCP and TLS; and 10,000 idle clients over TCP. The
server is a process of its own, and only its processor time and memory count. Another process has the clients
(benchmarks/federation/crowd.py). Linux only.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import netq
from benchmarks import page
from benchmarks.broker import free_port
from benchmarks.federation import crowd, work
from benchmarks.federation.processes import LIMIT, Failed, Processes
from netq.bench.output import markdown
from netq.bench.resources import Meter
from netq.security.tls import client_side

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "benchmarks-many.md"
TOP = """\
# One server, many clients

Written by `python -m benchmarks.federation.many --repeat {repeat}`, which writes it again: do not edit.

Rounds of a model of {mb} MB that each client adds 1 to, all clients in each round, and clients that only wait. Server
and clients are two processes on the same two cores. A thousand programs would not fit there, so one process has all
clients: each with a session and a connection of its own, in one thread. Seconds are those of all rounds but the first
of each run: the median, with the fastest and the slowest in brackets; they count both processes' work. Processor time
and memory are the server's alone; memory is the peak beyond what it had before it made its server. The goal is three
models, 100 MB, and 150 KiB a client.

Machine: {machine}, Python {python}.

"""
_MODEL_MB = 1
_IDLE = 30.0  # seconds of which the idle clients' processor time is measured
_SETTLE = 5.0  # seconds before that
_SESSIONS = 20_000  # of one address: all clients here share it


@dataclass(frozen=True)
class Row:
    """A number of clients. `is_idle`: they wait, and there is no round."""

    clients: int
    is_tls: bool = False
    is_idle: bool = False

    @property
    def name(self) -> str:
        """What the tables call it."""
        return f"{self.clients:,} {'idle ' if self.is_idle else ''}clients, {'TLS' if self.is_tls else 'TCP'}"


TRAINING = [Row(clients, is_tls) for clients in (100, 1000) for is_tls in (False, True)]
IDLE = [Row(10_000, is_idle=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the rows, and print their tables."""
    parser = argparse.ArgumentParser("python -m benchmarks.federation.many", description="a server with many clients")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each row (default: 1)")
    names = [row.name for row in (*TRAINING, *IDLE)]
    parser.add_argument("--only", nargs="+", default=names, metavar="ROW", help="rows by name", choices=names)
    args = parser.parse_args(arguments)
    chosen = [row for row in (*TRAINING, *IDLE) if row.name in args.only]
    found: dict[Row, list[dict[str, Any]]] = {row: [] for row in chosen}
    for _ in range(args.repeat):
        for row in chosen:
            figures = _measure(row)
            print(f"{row.name}: {figures}", file=sys.stderr, flush=True)
            if figures is not None:
                found[row].append(figures)
    training = [_training(row, found[row]) for row in TRAINING if found.get(row)]
    idle = [_idle(row, found[row]) for row in IDLE if found.get(row)]
    top = TOP.format(repeat=args.repeat, mb=_MODEL_MB, machine=page.machine(), python=platform.python_version())
    lines = [top.rstrip(), ""]
    if training:
        head = ["", "s/round", "server, CPU s/round", "server, MB", "goal, MB", "s to connect"]
        lines += [*markdown([head, *training]), ""]
    if idle:
        lines += [*markdown([["", "server, % of a core", "server, KiB/client", "s to connect"], *idle]), ""]
    text = "\n".join(lines)
    print(text)
    if len(chosen) == len(TRAINING) + len(IDLE) and all(found.values()):
        PAGE.write_text(text, encoding="utf-8")


def _measure(row: Row) -> dict[str, Any] | None:
    size = {"FEDERATION_CLIENTS": str(row.clients), "FEDERATION_MB": str(_MODEL_MB)}
    with Processes(size, every=LIMIT) as processes:
        port, kind, folder = free_port(), "idle" if row.is_idle else "train", list[str]()
        if row.is_tls:
            from netq.security import certificates

            certificates.init(processes.folder)
            folder = [str(processes.folder)]
        server = processes.python("benchmarks.federation.many", f"{kind}-server", str(port), str(row.clients), *folder)
        processes.until_listens(port)
        processes.python("benchmarks.federation.many", f"{kind}-clients", str(port), str(row.clients), *folder)
        try:
            processes.wait(server)
            return processes.figures()
        except Failed as error:
            print(f"{row.name} has failed:\n{error}", file=sys.stderr, flush=True)
            return None


def _training(row: Row, runs: Sequence[dict[str, Any]]) -> list[str]:
    seconds, cpu = ([value for run in runs for value in run[key]] for key in ("seconds", "cpu"))
    goal = 3 * _MODEL_MB + 100 + row.clients * 150 * 1024 / 1e6
    peak, connect = max(run["extra"] for run in runs) / 1e6, statistics.median(run["connect"] for run in runs)
    return [row.name, _spread(seconds), _spread(cpu), f"{peak:.0f}", f"{goal:.0f}", f"{connect:.1f}"]


def _idle(row: Row, runs: Sequence[dict[str, Any]]) -> list[str]:
    memory = max(run["extra"] for run in runs) / row.clients / 1024
    connect = statistics.median(run["connect"] for run in runs)
    return [row.name, _spread([100 * run["share"] for run in runs]), f"{memory:.1f}", f"{connect:.1f}"]


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


# The processes of a row.


def _server(kind: str, port: int, clients: int, folder: Path | None) -> None:
    import fl

    meter, begun = Meter(), list[float]()
    options = _options(port, folder, lambda peer: begun.append(time.perf_counter()))
    with fl.Server(work.model(), options, min_clients=clients) as server:
        server.wait(clients)
        figures: dict[str, Any] = {"connect": time.perf_counter() - begun[0]}
        figures |= _idle_share(server, clients) if kind == "idle" else _rounds(server, clients)
        work.report({**figures, "extra": meter.read().extra})
        if kind == "idle":
            os._exit(0)  # the clients stay, and `close` would wait for them


def _rounds(server: Any, clients: int) -> dict[str, Any]:
    clock, ends = work.Clock(), list[float]()
    for report in server.rounds(work.ROUNDS):
        assert len(report.clients) == clients, f"{len(report.clients)} of {clients} clients"
        clock.round_ends()
        ends.append(time.process_time())
    figures = clock.figures(float(server.model["layer0"][0]))
    assert figures["value"] == work.ROUNDS, figures
    return {**figures, "cpu": [after - before for before, after in itertools.pairwise(ends)]}


def _idle_share(server: Any, clients: int) -> dict[str, Any]:
    """Return the share of a core that the server uses while it waits for one client more."""
    for seconds in (_SETTLE, _IDLE):
        before = time.process_time(), time.perf_counter()
        try:
            server.wait(clients + 1, seconds)
        except TimeoutError:
            continue
    return {"share": (time.process_time() - before[0]) / (time.perf_counter() - before[1])}


def _clients(kind: str, port: int, clients: int, folder: Path | None) -> None:
    tls = None
    if folder is not None:
        tls = client_side(netq.SecurityOptions(certificate=folder / "authority.pem"), "127.0.0.1")
    crowd.run(port, clients, tls)


def _options(port: int, folder: Path | None, ini: Callable[[Any], object]) -> netq.CommunicatorOptions:
    return netq.CommunicatorOptions(
        netloc=netq.NetworkLocation("127.0.0.1", port),
        connection=netq.ConnectionOptions(max_sessions_per_address=_SESSIONS),
        security=None if folder is None else netq.SecurityOptions(folder / "server-key.pem", folder / "server.pem"),
        events=netq.EventOptions(ini=ini),
    )


def _side(role: str, port: str, count: str, *folder: str) -> None:
    """Run one process of a row."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    kind, side = role.split("-")
    run = _server if side == "server" else _clients
    run(kind, int(port), int(count), Path(folder[0]) if folder else None)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].endswith(("-server", "-clients")):
        _side(*sys.argv[1:])
    else:
        main()
