"""q-FFL on synthetic(1, 1), with logistic regression: how evenly is the accuracy of one model spread over the clients?

Source: Li et al., 2020, "Fair resource allocation in federated learning". Protocol: litian96/fair_flearn, README.md,
flearn/trainers/qffedavg.py, flearn/trainers/fedbase.py (sampling 2), flearn/models/client.py (the split),
flearn/models/synthetic/mclr.py, plot_fairness.py (the statistics).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fl
from benchmarks.results import synthetic
from benchmarks.results.synthetic import FEATURES, LABELS, Examples

CLIENTS, SELECTED, BATCH, RATE = 100, 10, 10, 0.1
TENTH = CLIENTS // 10
SPREAD = 0.8  # of the logarithms of sizes: makes some 125 examples a client, as the paper has; its code has 2


class Weighted(fl.QFedAvg):
    """q-FedAvg that selects clients at random, those with more examples more often."""

    def __init__(self, q: float, sizes: Sequence[int], seed: int) -> None:
        super().__init__(q=q, learning_rate=RATE, fraction=SELECTED / CLIENTS, seed=seed)
        self._shares = np.array(sizes) / sum(sizes)

    def select(self, number: int, clients: Sequence[uuid.UUID]) -> Sequence[uuid.UUID]:
        """Draw the clients of a round."""
        drawn = np.random.default_rng([self.seed, number]).choice(CLIENTS, SELECTED, replace=False, p=self._shares)
        return [uuid.UUID(int=int(client)) for client in drawn]


class Data:
    """The examples of the clients: 80 % for training; 10 % for validation, not used here; 10 % for the test."""

    def __init__(self, seed: int) -> None:
        rng = np.random.RandomState(seed)
        sizes = rng.lognormal(4, SPREAD, CLIENTS).astype(np.int64) + 50
        found = synthetic.clients(1, 1, sizes, rng)
        self.training = [each.part(0, len(each) * 8 // 10) for each in found]
        self.test = [each.part(len(each) * 9 // 10, len(each)) for each in found]

    def accuracies(self, model: Any) -> NDArray[np.float64]:
        """Return the percentage of right answers of a model for each client."""
        return np.array([100 * each.right(model["weights"]) / len(each) for each in self.test])


def epoch(data: Data) -> Any:
    """Return the train function: one epoch of gradient descent."""

    def descend(model: Any, config: Mapping[str, Any]) -> fl.Update:
        examples: Examples = data.training[config["partition"]]
        weights = model["weights"]
        loss = examples.loss(weights)
        shuffled = examples.take(np.random.permutation(len(examples)))
        for start in range(0, len(examples), BATCH):
            weights -= RATE * shuffled.part(start, start + BATCH).gradient(weights)
        return fl.Update({"weights": weights}, len(examples), {"loss": loss})

    return descend


def statistics(accuracies: NDArray[np.float64], sizes: Sequence[int]) -> list[float]:
    """Return the average by examples, the averages of the worst and the best tenth of the clients, and the variance."""
    ordered = np.sort(accuracies)
    average = np.average(accuracies, weights=sizes)
    return [float(each) for each in (average, ordered[:TENTH].mean(), ordered[-TENTH:].mean(), accuracies.var())]


def train(q: float, rounds: int, seed: int) -> NDArray[np.float64]:
    """Train with q-FedAvg; return the statistics of the clients' accuracies, their means over the last fourth."""
    data = Data(seed)
    bound = (6 / (FEATURES + LABELS)) ** 0.5  # as TensorFlow's dense layers; the bias begins at 0
    weights = np.random.RandomState(seed).uniform(-bound, bound, (FEATURES + 1, LABELS)).astype(np.float32)
    weights[-1] = 0
    sizes = [len(each) for each in data.test]
    measured = fl.simulate(
        {"weights": weights},
        [epoch(data)] * CLIENTS,
        rounds,
        strategy=Weighted(q, [len(each) for each in data.training], seed),
        measure=lambda model: statistics(data.accuracies(model), sizes),
        seed=seed,
    ).measured
    return np.asarray(np.mean(measured[-(rounds // 4 or 1) :], axis=0))


def main(rounds: int, runs: int) -> None:
    """Print the table: the mean over data sets, and its standard deviation."""
    print(f"{rounds} rounds, {runs} data sets: q | average | worst 10 % | best 10 % | variance", flush=True)
    for q in (0.0, 1.0):
        found = np.array([train(q, rounds, seed) for seed in range(runs)])
        cells = zip(found.mean(axis=0), found.std(axis=0), strict=True)
        print(q, *(f"{mean:.1f} ({deviation:.1f})" for mean, deviation in cells), sep=" | ", flush=True)
