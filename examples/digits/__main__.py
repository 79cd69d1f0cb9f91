"""python -m examples.digits: federated learning of handwritten digits, with processes and sockets, under TLS or sealed.

Shows each round, draws out/digits.png, and compares the model with what the same rounds give in one process.
Owns the terminal and the exit status; the processes are federation.py's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from examples.digits import plot
from examples.digits.federation import Facts, ProcessFailed, Setting, run
from examples.digits.reference import largest_difference, reference
from netq.options import Protocol

TOLERANCE = 1e-5  # in each weight: the order of the updates decides the last bits of their sum


def main(model: str = "examples.digits.model", picture: str = "out/digits.png") -> int:
    """Run the demo of a model module; return the exit status."""
    args = _arguments(model.rpartition(".")[0], picture)
    setting = Setting(model, args.rounds, args.clients, args.seed, Protocol(args.protocol))
    print(f"starting an aggregator and {args.clients} clients over {args.protocol}", flush=True)
    try:
        with _progress(args.rounds) as rounds:
            weights = asyncio.run(_federate(setting, rounds))
        return _conclude(setting, rounds.seen, weights, args.out)
    except (ProcessFailed, OSError) as error:  # OSError: a folder that cannot be written to
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except asyncio.CancelledError:
        return _fail("terminated", 143)


class Rounds:
    """Keeps the rounds of a run, and prints a line for each."""

    HEAD = "round  clients  accuracy   loss  seconds  kB both ways"

    def __init__(self, bar: Progress, total: int) -> None:
        self.seen: list[Facts] = []
        self._bar = bar
        self._task = bar.add_task("rounds", total=total)

    def show(self, facts: Facts) -> None:
        """Print a round that has ended, how the links are protected, or which client is gone."""
        if "links" in facts:
            links: Counter[str] = Counter(facts["links"])
            for protection, count in links.items():
                self._print(f"{count} connected: {protection}")
            return None
        if "gone" in facts:
            return self._print(f"       {facts['gone']}; the others go on")
        if not self.seen:
            self._print(self.HEAD)
        self.seen.append(facts)
        self._bar.advance(self._task)
        self._print(
            f"{facts['round']:5}  {facts['clients']:7}  {facts['accuracy']:8.3f}  {facts['loss']:5.3f}"
            f"  {facts['seconds']:7.3f}  {facts['bytes'] / 1000:12.1f}"
        )
        for failure in facts["failures"]:
            self._print(f"       one client less: {failure}")
        return None

    def _print(self, line: str) -> None:
        self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Rounds]:
    """Lines on stdout, and below them, on a terminal, a bar."""
    with Progress(disable=not sys.stdout.isatty()) as bar:
        yield Rounds(bar, total)


async def _federate(setting: Setting, rounds: Rounds) -> dict[str, Any]:
    """Run the federation in a temporary folder; return the weights that it came to."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with tempfile.TemporaryDirectory(prefix="netq-digits-") as folder:
        await run(setting, Path(folder), rounds.show)
        with np.load(Path(folder) / "model.npz") as weights:
            return dict(weights)


def _conclude(setting: Setting, rounds: list[Facts], weights: dict[str, Any], picture: Path) -> int:
    plot.accuracy_by_round([facts["accuracy"] for facts in rounds], picture)
    print(f"accuracy by round: {picture}")
    if any(facts["clients"] < setting.clients for facts in rounds):
        print("no comparison with the same rounds in one process: there, no client is ever missing")
    elif not _is_reference(setting, weights):
        return 1
    print(f"final accuracy {rounds[-1]['accuracy']:.3f}")
    return 0


def _is_reference(setting: Setting, weights: dict[str, Any]) -> bool:
    """Say how far the weights are from those of the same rounds in one process."""
    model = importlib.import_module(setting.model)
    expected = reference(setting.rounds, model, setting.clients, setting.seed)
    difference = largest_difference(weights, expected)
    print(f"the same model as without a network: largest difference {difference:.1e}")
    if not difference <= TOLERANCE:
        _fail(f"the model is not that of the same rounds in one process: expected at most {TOLERANCE}", 1)
    return difference <= TOLERANCE


def _fail(why: str, status: int) -> int:
    print(f"error: {why}", file=sys.stderr)
    return status


def _arguments(package: str, picture: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        f"python -m {package}", description="Federated learning of handwritten digits, on this machine."
    )
    parser.add_argument("--protocol", choices=[protocol.value for protocol in Protocol], default="tcp")
    parser.add_argument("--rounds", type=_count, default=30)
    parser.add_argument("--clients", type=_count, default=4, help="processes, each with its part of the digits")
    parser.add_argument("--seed", type=int, default=0, help="decides the split, the first model and all shuffling")
    parser.add_argument("--out", type=Path, default=Path(picture), help="where to draw the accuracy, as PNG")
    return parser.parse_args()


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}; expected 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
