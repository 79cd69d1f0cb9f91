"""The work that all rows do: a model of ten float32 arrays, clients that add 1 to it, and the seconds of each round.

Imported in the processes of every row, so it imports nothing of Flower.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

ARRAYS = 10
MODEL_MB = int(os.environ.get("FEDERATION_MB", "100"))
CLIENTS = int(os.environ.get("FEDERATION_CLIENTS", "2"))
ROUNDS = int(os.environ.get("FEDERATION_ROUNDS", "5"))

Model = dict[str, NDArray[np.float32]]


def model() -> Model:
    """Return the model that rounds begin with: zeros."""
    size = MODEL_MB * 10**6 // 4 // ARRAYS
    return {f"layer{number}": np.zeros(size, np.float32) for number in range(ARRAYS)}


def train(arrays: Model) -> None:
    """Add 1, in place."""
    for array in arrays.values():
        array += 1


class Clock:
    """Records when rounds end. The first round is the warm-up: its seconds are left out."""

    def __init__(self) -> None:
        self._ends = [time.perf_counter()]

    def round_ends(self) -> None:
        """Record the time."""
        self._ends.append(time.perf_counter())

    def figures(self, value: float) -> dict[str, Any]:
        """Return the seconds of each round, and a value of the model, which must be the number of rounds."""
        seconds = [after - before for before, after in zip(self._ends[1:], self._ends[2:], strict=False)]
        return {"seconds": seconds, "value": value}


def report(figures: dict[str, Any]) -> None:
    """Print the figures, and write them to the file that FEDERATION_RESULT names, for the process that measures."""
    text = json.dumps(figures)
    if path := os.environ.get("FEDERATION_RESULT"):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    print(text, flush=True)
