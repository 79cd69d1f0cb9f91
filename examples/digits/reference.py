"""The same rounds in one process, without a network: what the federation must come to.

Plain loops over the train function of a model module and the weighted mean (McMahan et al. 2017,
arXiv:1602.05629, algorithm 1). Works on numpy arrays and torch tensors alike, in their own precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

import fl


def reference(rounds: int, model: ModuleType, partitions: int = 4, seed: int = 0) -> dict[str, Any]:
    """Return the model after `rounds` rounds of the model module's `train` on every partition."""
    weights: dict[str, Any] = model.initial(seed)
    for number in range(1, rounds + 1):
        config = {"seed": seed, "round": number, "partitions": partitions}
        weights = mean([model.train(weights, {**config, "partition": part}) for part in range(partitions)])
    return weights


def mean(updates: Sequence[fl.Update]) -> dict[str, Any]:
    """Return the mean of the updates' models, each weighted by its number of examples."""
    total = sum(update.num_examples for update in updates)
    return {
        name: sum(update.model[name] * (update.num_examples / total) for update in updates) for name in updates[0].model
    }


def largest_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return how far the two models are apart in the weight in which they differ most."""
    if one.keys() != other.keys():
        raise ValueError(f"models of different layers: {sorted(one)} and {sorted(other)}")
    return max(float(np.abs(np.asarray(one[name]) - np.asarray(other[name])).max()) for name in one)
