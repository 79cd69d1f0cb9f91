"""A small network in plain numpy: 64 pixels, 64 hidden units (tanh), 10 digits.

`train` and `evaluate` are what a client does, named in its TOML file; `initial` and `measure` are for the
server. examples/digits_torch/model.py has the same four functions, in torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import fl
from examples.digits import data

Model: TypeAlias = dict[str, NDArray[Any]]  # weights of shape (out, in), as torch has them

SIZES = (64, 64, 10)
LEARNING_RATE = 0.1
MOMENTUM = 0.9


def initial(seed: int) -> Model:
    """Return a model that knows nothing yet."""
    rng = np.random.default_rng(seed)
    model: Model = {}
    for name, inputs, outputs in zip(("hidden", "output"), SIZES, SIZES[1:], strict=False):
        scale = np.sqrt(1 / inputs)
        model[f"{name}.weight"] = (scale * rng.standard_normal((outputs, inputs))).astype(np.float32)
        model[f"{name}.bias"] = np.zeros(outputs, np.float32)
    return model


def train(model: Model, config: Mapping[str, Any]) -> fl.Update:
    """Train on this client's examples: minibatch SGD, with momentum that starts anew each round."""
    examples = data.partition(config)
    model = {name: array.copy() for name, array in model.items()}  # the server's is not ours to change
    velocity = {name: np.zeros_like(array) for name, array in model.items()}
    for images, labels in data.batches(examples, config):
        for name, gradient in gradients(model, images, labels).items():
            velocity[name] = MOMENTUM * velocity[name] + gradient
            model[name] -= LEARNING_RATE * velocity[name]
    return fl.Update(model, len(examples.labels))


def evaluate(model: Model, config: Mapping[str, Any]) -> fl.Report:
    """Tell how well the model does on this client's own examples."""
    examples = data.partition(config)
    accuracy, loss = measure(model, examples)
    return fl.Report(len(examples.labels), {"accuracy": accuracy, "loss": loss})


def measure(model: Model, examples: data.Examples) -> tuple[float, float]:
    """Return accuracy and mean loss."""
    _, logits = _forward(model, examples.images)
    accuracy = np.mean(logits.argmax(axis=1) == examples.labels)
    return float(accuracy), _cross_entropy(logits, examples.labels)


def gradients(model: Model, images: NDArray[Any], labels: NDArray[np.int64]) -> Model:
    """Return the slope of the mean cross-entropy at each weight."""
    hidden, logits = _forward(model, images)
    slope = np.exp(_log_softmax(logits))
    slope[np.arange(len(labels)), labels] -= 1
    slope /= len(labels)
    back = (slope @ model["output.weight"]) * (1 - hidden**2)
    return {
        "hidden.weight": back.T @ images,
        "hidden.bias": back.sum(axis=0),
        "output.weight": slope.T @ hidden,
        "output.bias": slope.sum(axis=0),
    }


def _forward(model: Model, images: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    # tanh, not ReLU: its slope has no jump, so rounding differences between two orders of summing stay as small
    hidden = np.tanh(images @ model["hidden.weight"].T + model["hidden.bias"])
    return hidden, hidden @ model["output.weight"].T + model["output.bias"]


def _cross_entropy(logits: NDArray[Any], labels: NDArray[np.int64]) -> float:
    return -float(np.mean(_log_softmax(logits)[np.arange(len(labels)), labels]))


def _log_softmax(logits: NDArray[Any]) -> NDArray[Any]:
    logits = logits - logits.max(axis=1, keepdims=True)
    log_softmax: NDArray[Any] = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return log_softmax
