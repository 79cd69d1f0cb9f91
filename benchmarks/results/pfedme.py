"""pFedMe on synthetic(0.5, 0.5), with logistic regression: personal models near a global one, compared with FedAvg.

In each round all clients train; the server averages the models of ten of them. A client keeps its personal model in
config["state"], and does not send it.

Source: T. Dinh et al., 2020, "Personalized federated learning with Moreau envelopes", algorithm 1. Protocol and
hyperparameters: CharlieDinh/pFedMe, README.md ("Fine-tuned parameters", synthetic, strongly convex), main.py,
FLAlgorithms/users and FLAlgorithms/servers.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import fl
from benchmarks.results import synthetic
from benchmarks.results.synthetic import Array, Examples

CLIENTS, COUNTED, STEPS, BATCH = 100, 10, 20, 20  # clients, those in the mean; local steps, and examples in each
RATE, PERSONAL_RATE, PERSONAL_STEPS, PULL, DECAY = 0.01, 0.01, 5, 20.0, 0.001
BETA = 2.0  # the server's model moves by this factor of the way to the mean
FEDAVG_RATE = 0.02


class PFedMe(fl.FedAvgM):
    """All clients train, and some, drawn at random, move the server's model: by `beta` of the way to their mean."""

    def __init__(self, beta: float, **options: Any) -> None:
        super().__init__(learning_rate=beta, momentum=0.0, **options)
        self._counted: set[uuid.UUID] = set()

    def select(self, number: int, clients: Sequence[uuid.UUID]) -> Sequence[uuid.UUID]:
        """Select all clients, and draw those that count."""
        self._counted = set(random.Random(f"{self.seed} {number}").sample(sorted(clients), COUNTED))
        return super().select(number, clients)

    def fold(self, model: Any, update: fl.Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Fold the model of a client that counts into the mean."""
        if client in self._counted:
            super().fold(model, update, client=client, staleness=staleness)


class Data:
    """The examples of the clients, nine tenths of each for training."""

    def __init__(self, seed: int) -> None:
        rng = np.random.RandomState(0)  # the authors' seed: each run has the same examples
        sizes = (rng.lognormal(4, 2, CLIENTS).astype(np.int64) + 50) * 5
        found = synthetic.clients(0.5, 0.5, sizes, rng)
        shuffle = np.random.default_rng(seed)
        found = [each.take(shuffle.permutation(len(each))) for each in found]
        self.training = [each.part(0, len(each) * 9 // 10) for each in found]
        self.test = [each.part(len(each) * 9 // 10, len(each)) for each in found]
        self.tests = sum(map(len, self.test))

    def batch(self, client: int, number: int, step: int) -> Examples:
        """Return the batch of a step of a round: the batches follow each other, again and again."""
        examples = self.training[client]
        start = ((number - 1) * STEPS + step) % -(-len(examples) // BATCH) * BATCH
        return examples.part(start, start + BATCH)

    def accuracy(self, model: Any) -> float:
        """Return the share of right answers of one model on the test examples of all clients."""
        return sum(each.right(model["weights"]) for each in self.test) / self.tests


def personalise(data: Data) -> Any:
    """Return the train function of pFedMe."""

    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        client, weights = config["partition"], model["weights"]
        personal: Array = weights.copy()
        for step in range(STEPS):
            batch = data.batch(client, config["round"], step)
            for _ in range(PERSONAL_STEPS):
                slope = batch.gradient(personal) + PULL * (personal - weights) + DECAY * personal
                personal -= PERSONAL_RATE * slope
            weights -= RATE * PULL * (weights - personal)
        config["state"]["personal"] = personal
        right = {"personal": data.test[client].right(personal), "local": data.test[client].right(weights)}
        return fl.Update({"weights": weights}, len(data.training[client]), right)

    return train


def descend(data: Data) -> Any:
    """Return the train function of FedAvg."""

    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        client, weights = config["partition"], model["weights"]
        for step in range(STEPS):
            weights -= FEDAVG_RATE * data.batch(client, config["round"], step).gradient(weights)
        return fl.Update({"weights": weights}, len(data.training[client]))

    return train


def accuracies(rounds: int, seed: int) -> dict[str, list[float]]:
    """Return the accuracy of each kind of model after each round."""
    data = Data(seed)
    model = {"weights": synthetic.initial(np.random.RandomState(seed))}
    ours = fl.simulate(
        model, [personalise(data)] * CLIENTS, rounds, strategy=PFedMe(BETA, seed=seed), measure=data.accuracy, seed=seed
    )
    average = fl.FedAvg(fraction=COUNTED / CLIENTS, seed=seed)
    theirs = fl.simulate(model, [descend(data)] * CLIENTS, rounds, strategy=average, measure=data.accuracy, seed=seed)

    def share(name: str) -> list[float]:
        return [sum(each[name] for each in report.client_metrics.values()) / data.tests for report in ours.reports]

    return {
        "pFedMe, personal": share("personal"),
        "pFedMe, local": share("local"),
        "pFedMe, global": list(ours.measured),
        "FedAvg, global": list(theirs.measured),
    }


def main(rounds: int, runs: int) -> None:
    """Print the table: as in the authors' code, the best round of each run, and the mean over the runs."""
    found = [accuracies(rounds, seed) for seed in range(runs)]
    print(f"{rounds} rounds, {runs} runs: model | best round, mean (standard deviation) | last round")
    for name in found[0]:
        best, last = [100 * max(run[name]) for run in found], [100 * run[name][-1] for run in found]
        print(name, f"{np.mean(best):.2f} ({np.std(best):.2f})", f"{np.mean(last):.2f}", sep=" | ")
