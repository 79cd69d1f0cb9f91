"""The synthetic(alpha, beta) data of federated learning, and the logistic regression that is trained on them.

A client's labels come from a linear model of its own, with weights from N(u, 1) and u from N(0, alpha**2). Its features
have means from N(v, 1), with v from N(0, beta**2), and the variances j**-1.2 for j = 1 to 60. There are 10 labels.

Source: Li et al., 2020, "Federated optimization in heterogeneous networks", as in the code of the papers that use it
(CharlieDinh/pFedMe, data/Logistic_Synthetic/generate_synthetic_05_05.py; litian96/fair_flearn,
data/synthetic/generate_synthetic.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEATURES, LABELS = 60, 10

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Examples:
    """Features with a column of ones, for the bias, and labels as rows of 0 and a 1."""

    features: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.features)

    def part(self, start: int, stop: int) -> Examples:
        """Return some of the examples."""
        return Examples(self.features[start:stop], self.labels[start:stop])

    def take(self, indices: NDArray[np.intp]) -> Examples:
        """Return the examples with these indices."""
        return Examples(self.features[indices], self.labels[indices])

    def gradient(self, weights: Array) -> Array:
        """Return the gradient of the mean cross-entropy of a softmax regression."""
        scores = self.features @ weights
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        scores -= self.labels
        return np.asarray(self.features.T @ scores / np.float32(len(self)), np.float32)

    def loss(self, weights: Array) -> float:
        """Return the mean cross-entropy."""
        scores = self.features @ weights
        scores -= scores.max(axis=1, keepdims=True)
        return float((np.log(np.exp(scores).sum(axis=1)) - (scores * self.labels).sum(axis=1)).mean())

    def right(self, weights: Array) -> int:
        """Return the number of right answers."""
        return int(((self.features @ weights).argmax(axis=1) == self.labels.argmax(axis=1)).sum())


def clients(alpha: float, beta: float, sizes: NDArray[np.int64], rng: np.random.RandomState) -> list[Examples]:
    """Return the examples of each client. The random numbers are drawn in the order of the code of the papers."""
    weights_means, features_means = rng.normal(0, alpha, len(sizes)), rng.normal(0, beta, len(sizes))
    centres = [rng.normal(mean, 1, FEATURES) for mean in features_means]
    deviations = np.sqrt(np.arange(1, FEATURES + 1) ** -1.2)
    found = []
    for size, mean, centre in zip(sizes, weights_means, centres, strict=True):
        weights, bias = rng.normal(mean, 1, (FEATURES, LABELS)), rng.normal(mean, 1, LABELS)
        features = rng.normal(centre, deviations, (size, FEATURES))  # as multivariate_normal draws them
        labels = np.eye(LABELS, dtype=np.float32)[(features @ weights + bias).argmax(axis=1)]
        found.append(Examples(np.hstack([features, np.ones((size, 1))]).astype(np.float32), labels))
    return found


def initial(rng: np.random.RandomState) -> Array:
    """Return weights as torch.nn.Linear has them at first: uniform, up to 1 / sqrt(features)."""
    bound = FEATURES**-0.5
    return rng.uniform(-bound, bound, (FEATURES + 1, LABELS)).astype(np.float32)
