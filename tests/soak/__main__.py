"""python -m tests.soak: a server, 20 clients and random faults. Prints a table per wire; status 1 on errors.

Owns the process: its arguments, its output, its exit status. With --wire all, each wire runs in its own process, so
that each has its own memory figures; as many run at the same time as there are cores.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from netq.security import certificates
from tests.soak.report import Report
from tests.soak.run import Plan, run
from tests.soak.wires import WIRES, NotInstalled


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the wires of the command line; return the exit status."""
    options = _parser().parse_args(arguments)
    if options.seed is None:
        options.seed = secrets.randbelow(1_000_000)
    return _all(options) if options.wire == "all" else _one(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.soak", description="Messages under faults, and a judge of them.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--seed", type=int, help="of the faults (default: a random one, printed)")
    parser.add_argument("--wire", choices=[*WIRES, "all"], default="all", help="(default: all)")
    parser.add_argument("--clients", type=int, default=20, help="(default: 20)")
    parser.add_argument("--history", type=Path, help="where to keep the history (default: only if it went wrong)")
    return parser


def _all(options: argparse.Namespace) -> int:
    """Run each wire in a process, and print their output one after the other."""
    commands = [_command(options, wire) + _history(options.history, wire) for wire in WIRES]
    statuses = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for done in pool.map(_process, commands):
            print(done.stdout, flush=True)
            statuses.append(done.returncode)
    return max(statuses)


def _process(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


def _one(options: argparse.Namespace) -> int:
    plan = Plan(options.wire, options.seconds, options.seed, options.clients)
    history = options.history or Path(tempfile.gettempdir(), f"netq-soak-{plan.wire}-{plan.seed}.jsonl")
    with tempfile.TemporaryDirectory() as folder:
        try:
            report = run(plan, certificates.init(Path(folder)), history)
        except NotInstalled as missing:
            print(f"wire      {plan.wire}: left out, {missing}")
            return 0
    status = finish(report, _command(options, plan.wire), history)
    if status == 0 and options.history is None:
        history.unlink()
    return status


def finish(report: Report, again: Sequence[str], history: Path) -> int:
    """Print a report, and after an error the command that repeats it; return the exit status."""
    print(report)
    if report.good:
        return 0
    print(f"again     {' '.join(again)}")
    print(f"history   {history}")
    return 1


def _command(options: argparse.Namespace, wire: str) -> list[str]:
    figures = ["--seconds", f"{options.seconds:g}", "--seed", f"{options.seed}", "--clients", f"{options.clients}"]
    return [sys.executable, "-m", "tests.soak", "--wire", wire, *figures]


def _history(path: Path | None, wire: str) -> list[str]:
    """Return the history file of a wire."""
    return [] if path is None else ["--history", str(path.with_name(f"{path.stem}-{wire}{path.suffix}"))]


if __name__ == "__main__":
    sys.exit(main())
