"""The speed at which the server folds and finishes: bytes of an update a second, compared with a copy by numpy.

Called by benchmarks/federation/__main__.py, while no other process of it runs. Uses one pinned thread, and the threads
of numpy's BLAS. The kernels run in turn, so that other work of the machine affects all of them.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import fl
from benchmarks.federation import work
from fl.messages import Update
from fl.tensors import spec
from netq.bench.resources import cores, pinned

TURNS = 15
CLIENT = uuid.UUID(int=1)


Speed = tuple[float, float]  # bytes of a model a second, and the ratio to the copy in the same turn: medians


def measure() -> dict[str, Speed]:
    """Return the speed of each kernel, first that of the copy."""
    with pinned(cores()[-1]):
        return _speeds(_kernels())


def _kernels() -> dict[str, tuple[int, Callable[[], object]]]:
    """Return the functions to time, each with the bytes of its model."""
    model, update, target = (work.model() for _ in range(3))
    work.train(update)

    def copy() -> None:
        for name, array in update.items():
            np.copyto(target[name], array)

    tensors = {name: torch.from_numpy(array) for name, array in update.items()}
    half = {name: array.astype(np.float16) for name, array in update.items()}
    brain = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    return {
        "a copy (numpy)": (spec.nbytes(update), copy),
        "a copy, again": (spec.nbytes(update), copy),
        "fold, float32": _fold(update),
        "fold, float32 (torch)": _fold(tensors),
        "fold, float16": _fold(half),
        "fold, bfloat16 (torch)": _fold(brain),
        "round of 1, FedAvg": _round(fl.FedAvg(), model, update),
        "round of 1, FedAvgM": _round(fl.FedAvgM(), model, update),
        "round of 1, FedAdam": _round(fl.FedAdam(), model, update),
    }


def _fold(model: Mapping[str, Any]) -> tuple[int, Callable[[], object]]:
    mean = fl.WeightedMean(model)
    mean.fold(model, 1.0)  # the first is a copy
    return spec.nbytes(model), lambda: mean.fold(model, 1.0)


def _round(strategy: fl.Strategy, model: Any, update: Any) -> tuple[int, Callable[[], object]]:
    strategy.begin(model)

    def fold_and_finish() -> None:
        strategy.fold(model, Update(update, 1), client=CLIENT)
        strategy.finish(model, number=1)

    return spec.nbytes(model), fold_and_finish


def _speeds(kernels: Mapping[str, tuple[int, Callable[[], object]]]) -> dict[str, Speed]:
    rates: dict[str, list[float]] = {name: [] for name in kernels}
    for _ in range(TURNS + 1):
        for name, (size, kernel) in kernels.items():
            begin = time.perf_counter()
            kernel()
            rates[name].append(size / (time.perf_counter() - begin))
    first = next(iter(rates.values()))
    return {
        name: (
            statistics.median(of[1:]),  # the first turn is the warm-up
            statistics.median(own / copied for own, copied in zip(of[1:], first[1:], strict=True)),
        )
        for name, of in rates.items()
    }
