"""A row of fl: python -m benchmarks.simulation.ours ENGINE CLIENTS ROUNDS."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import fl
from benchmarks.federation.work import Clock, report
from benchmarks.simulation import work


def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
    """Train a client."""
    work.step(model["weights"], model["bias"], config["partition"])
    return fl.Update(model, work.EXAMPLES)


class _Ends(fl.Callback):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def round_ends(self, report: fl.RoundReport, model: Any) -> None:
        """Note the time."""
        self._clock.round_ends()


def main(engine: Any, clients: int, rounds: int) -> None:
    """Run the rounds."""
    clock = Clock()
    result = fl.simulate(
        work.initial(), [train] * clients, rounds, engine=engine, callbacks=[_Ends(clock)], progress=False, seed=1
    )
    assert all(len(report.clients) == clients for report in result.reports)
    report(clock.figures(work.accuracy(result.model["weights"], result.model["bias"])))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
