"""Prints a published result, computed again with fl (docs/reference/results.md):

    python -m benchmarks.results fednova
    python -m benchmarks.results pfedme [--rounds 600] [--runs 2]
    python -m benchmarks.results qffl [--rounds 3000] [--runs 2]

Runs differ in their random numbers.
"""

from __future__ import annotations

import argparse
import logging
import time

from benchmarks.results import fednova, pfedme, qffl

RESULTS = {"pfedme": (pfedme.main, 600, 2), "qffl": (qffl.main, 3000, 2)}  # with their rounds and runs


def main() -> None:
    """Print the result that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results")
    parser.add_argument("result", choices=("fednova", *RESULTS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--runs", type=int)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # also that one client has most of the examples of a round
    begin = time.monotonic()
    if arguments.result == "fednova":
        fednova.main()
    else:
        show, rounds, runs = RESULTS[arguments.result]
        show(arguments.rounds or rounds, arguments.runs or runs)
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
