"""python -m tests.soak: a server, 20 clients and a nemesis between them; a table a wire; status 1 if anything is wrong.

Owns the process: its arguments, what it prints, its exit status. With --wire both, each wire has a process of its own,
at the same time, so that the memory of one is not counted with the other's.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from netq.security import certificates
from tests.soak.report import Report
from tests.soak.run import WIRES, Plan, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; return the exit status."""
    options = _parser().parse_args(arguments)
    if options.seed is None:
        options.seed = secrets.randbelow(1_000_000)
    return _both(options) if options.wire == "both" else _one(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.soak", description="Messages under faults, and a judge of them.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--seed", type=int, help="of the faults (default: a random one, printed)")
    parser.add_argument("--wire", choices=[*WIRES, "both"], default="both", help="(default: both, at the same time)")
    parser.add_argument("--clients", type=int, default=20, help="(default: 20)")
    parser.add_argument("--history", type=Path, help="where to keep what happened (default: only if it went wrong)")
    return parser


def _both(options: argparse.Namespace) -> int:
    """Run each wire in a process, and print what they say one after the other."""
    commands = [_command(options, wire) + _history(options.history, wire) for wire in WIRES]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    for process in processes:
        print(process.communicate()[0], flush=True)
    return max(process.returncode for process in processes)


def _one(options: argparse.Namespace) -> int:
    plan = Plan(options.wire, options.seconds, options.seed, options.clients)
    history = options.history or Path(tempfile.gettempdir(), f"netq-soak-{plan.wire}-{plan.seed}.jsonl")
    with tempfile.TemporaryDirectory() as folder:
        report = run(plan, certificates.make(Path(folder)), history)
    status = conclude(report, _command(options, plan.wire), history)
    if status == 0 and options.history is None:
        history.unlink()
    return status


def conclude(report: Report, again: Sequence[str], history: Path) -> int:
    """Print a report, and if something is wrong, how to see it again; return the exit status."""
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
    """A file for each wire."""
    return [] if path is None else ["--history", str(path.with_name(f"{path.stem}-{wire}{path.suffix}"))]


if __name__ == "__main__":
    sys.exit(main())
