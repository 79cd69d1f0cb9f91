"""python -m benchmarks.simulation.clock: accuracy by virtual time, where a tenth of the devices is ten times slower.

Writes docs/images/virtual-time.png, which docs/how-to/simulation.md shows. 100 clients have all of scikit-learn's
digits, split by Dirichlet(0.5), and a held-out tenth is what accuracy is measured on. A client trains its digits for
one epoch, with batches of 10.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fl
from benchmarks.simulation import work
from netq.bench.output import markdown

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "virtual-time.png"
CLIENTS, TENTH, BATCH, RATE, UNTIL = 100, 179, 10, 0.1, 2000.0
TIMES = (250.0, 500.0, 1000.0, UNTIL)
DEVICES = fl.Devices([100.0 if client % 10 == 0 else 10.0 for client in range(CLIENTS)], up=1.0, down=10.0)
STRATEGIES: Mapping[str, tuple[Any, int]] = {  # with as many rounds as the time has
    "FedAvg, all": (lambda: fl.FedAvg(), 20),
    "FedAvg, 30 of 39 asked": (lambda: fl.FedAvg(fraction=0.3, oversample=0.3), 200),
    "FedBuff(10)": (lambda: fl.FedBuff(10, learning_rate=1.0), 2000),
    "FedAsync(0.1)": (lambda: fl.FedAsync(0.1), 20_000),
}


@functools.cache
def _parts() -> list[NDArray[np.int64]]:
    return fl.data.dirichlet(work.ANSWERS[TENTH:], CLIENTS, alpha=0.5, seed=1)


def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Train a client for an epoch."""
    mine = np.random.permutation(_parts()[config["partition"]]) + TENTH
    for start in range(0, len(mine), BATCH):
        work.descend(model["weights"], model["bias"], mine[start : start + BATCH], RATE)
    return fl.Update(model, len(mine))


class _Until(fl.Callback):
    """Ends a simulation at a time of its clock."""

    def __init__(self) -> None:
        self._now = 0.0

    def round_ends(self, report: fl.RoundReport, model: Any) -> None:
        """Add the round's seconds."""
        self._now += report.seconds
        self.stop = self._now >= UNTIL


def measure(model: Any) -> float:
    """Return the accuracy on what no client has."""
    return work.accuracy(model["weights"], model["bias"], slice(0, TENTH))


def at(reports: Sequence[fl.RoundReport], seconds: float) -> str:
    """Return the accuracy of the last model before a time of the clock."""
    ends = itertools.accumulate(report.seconds for report in reports)
    before = [report.evaluation["accuracy"] for report, end in zip(reports, ends, strict=True) if end <= seconds]
    return f"{before[-1]:.3f}" if before else ""


def main() -> None:
    """Print the table, and draw the picture."""
    runs, rows = {}, []
    for name, (make, rounds) in STRATEGIES.items():
        begin = time.perf_counter()
        found = fl.simulate(
            *(work.initial(), [train] * CLIENTS, rounds),
            strategy=make(),
            measure=measure,
            devices=DEVICES,
            callbacks=[_Until()],
            seed=1,
            progress=False,
        )
        here, each = time.perf_counter() - begin, zip(found.reports, found.measured, strict=True)
        reports = [replace(report, evaluation={"accuracy": accuracy}) for report, accuracy in each]
        runs[name] = reports
        updates = sum(len(report.clients) for report in reports)
        rows.append([name, len(reports), updates, *(at(reports, time) for time in TIMES), f"{here:.1f}"])
    head = ["", "models", "updates", *(f"accuracy at {time:,.0f} s" for time in TIMES), "seconds here"]
    print("\n".join(markdown([head, *([str(cell) for cell in row] for row in rows)])))
    fl.callbacks.plots.rounds(runs, metric="accuracy", by="seconds", out=PICTURE)


if __name__ == "__main__":
    main()
