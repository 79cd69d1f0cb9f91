"""Prints a published result that fl has computed again: python -m benchmarks.results fednova"""

from __future__ import annotations

import argparse
import logging
import time

from benchmarks.results import fednova

RESULTS = {"fednova": fednova.main}


def main() -> None:
    """Print the result that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results")
    parser.add_argument("result", choices=RESULTS)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # also that one client has most of the examples of a round
    begin = time.monotonic()
    RESULTS[arguments.result]()
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
