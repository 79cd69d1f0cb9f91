"""The row of a bare loop: python -m benchmarks.simulation.loop CLIENTS ROUNDS. One process, nothing is checked."""

from __future__ import annotations

import sys

from benchmarks.federation.work import Clock, report
from benchmarks.simulation import work


def main(clients: int, rounds: int) -> None:
    """Run the rounds."""
    model, clock = work.initial(), Clock()
    for _ in range(rounds):
        total = {name: 0.0 * array for name, array in model.items()}
        for client in range(clients):
            mine = {name: array.copy() for name, array in model.items()}
            work.step(mine["weights"], mine["bias"], client)
            for name, array in mine.items():
                total[name] += array
        model = {name: array / clients for name, array in total.items()}
        clock.round_ends()
    report(clock.figures(work.accuracy(model["weights"], model["bias"])))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
