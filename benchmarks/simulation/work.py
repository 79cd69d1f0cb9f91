"""The task that all rows do: clients with ten digits each train a softmax regression for one step, and are averaged.

The digits are scikit-learn's: 1,797 images of 64 pixels; client p has those from 10 p on. Needs numpy and scikit-learn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

EXAMPLES, FEATURES, LABELS, RATE = 10, 64, 10, 1.0

_images, _labels = load_digits(return_X_y=True)
IMAGES: NDArray[np.float32] = (_images / 16).astype(np.float32)
ANSWERS: NDArray[np.int64] = _labels.astype(np.int64)


def initial() -> dict[str, Any]:
    """Return the first model."""
    return {"weights": np.zeros((FEATURES, LABELS), np.float32), "bias": np.zeros(LABELS, np.float32)}


def indices(client: int) -> NDArray[np.int64]:
    """Return which digits a client has."""
    return (EXAMPLES * client + np.arange(EXAMPLES)) % len(ANSWERS)


def step(weights: NDArray[np.float32], bias: NDArray[np.float32], client: int) -> None:
    """Train a client for one step of gradient descent, in place."""
    descend(weights, bias, indices(client), RATE)


def descend(weights: NDArray[np.float32], bias: NDArray[np.float32], examples: NDArray[np.int64], rate: float) -> None:
    """Take one step of gradient descent with some digits, in place."""
    images, answers = IMAGES[examples], ANSWERS[examples]
    scores = images @ weights + bias
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    scores[np.arange(len(examples)), answers] -= 1
    scores /= len(examples)
    weights -= rate * (images.T @ scores)
    bias -= rate * scores.sum(axis=0)


def accuracy(weights: NDArray[np.float32], bias: NDArray[np.float32], digits: slice = slice(None)) -> float:
    """Return the share of some digits that a model gets right; by default of all."""
    return float((np.argmax(IMAGES[digits] @ weights + bias, axis=1) == ANSWERS[digits]).mean())
