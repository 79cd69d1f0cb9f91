"""The work that all rows do: a model of ten float32 arrays, clients that add 1 to it, and how long each round took.

Imported in the processes of every row; the names of Flower are imported where they are needed.
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
    """When rounds end. The first round is not told: it begins before all is warm."""

    def __init__(self) -> None:
        self._ends = [time.perf_counter()]

    def round_ends(self) -> None:
        """Note it."""
        self._ends.append(time.perf_counter())

    def tell(self, value: float) -> dict[str, Any]:
        """Return the seconds of each round, and what became of the model: as many as there were rounds."""
        seconds = [after - before for before, after in zip(self._ends[1:], self._ends[2:], strict=False)]
        return {"seconds": seconds, "value": value}


def peak() -> int:
    """Return the most bytes that this process has had in memory, its interpreter with them."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def say(facts: dict[str, Any]) -> None:
    """Print figures for the process that measures; or write them where FEDERATION_RESULT says."""
    text = json.dumps(facts)
    if path := os.environ.get("FEDERATION_RESULT"):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    print(text, flush=True)
