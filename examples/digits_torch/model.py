"""The network of examples/digits/model.py as a torch module: what is sent around is its state_dict.

The same four functions: `train` and `evaluate` for a client, `initial` and `measure` for the server.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fl
from examples.digits import data

Model: TypeAlias = dict[str, Tensor]

LEARNING_RATE = 0.1
MOMENTUM = 0.9

torch.set_num_threads(1)  # the demo's processes share few cores; threads would only wait


def network() -> nn.Sequential:
    """Return the module, with weights that are yet to be loaded."""
    layers = OrderedDict(hidden=nn.Linear(64, 64), activation=nn.Tanh(), output=nn.Linear(64, 10))
    return nn.Sequential(layers)


def initial(seed: int) -> Model:
    """Return the state_dict of a model that knows nothing yet."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return dict(network().state_dict())


def train(model: Model, config: Mapping[str, Any]) -> fl.Update:
    """Train on this client's examples: minibatch SGD, with momentum that starts anew each round."""
    examples = data.partition(config)
    module = _load(model)
    optimizer = torch.optim.SGD(module.parameters(), LEARNING_RATE, MOMENTUM)
    for images, labels in data.batches(examples, config):
        optimizer.zero_grad()
        cross_entropy(module(torch.from_numpy(images)), torch.from_numpy(labels)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return fl.Update(dict(module.state_dict()), len(examples.labels))


def evaluate(model: Model, config: Mapping[str, Any]) -> fl.Report:
    """Tell how well the model does on this client's own examples."""
    examples = data.partition(config)
    accuracy, loss = measure(model, examples)
    return fl.Report(len(examples.labels), {"accuracy": accuracy, "loss": loss})


@torch.no_grad()
def measure(model: Model, examples: data.Examples) -> tuple[float, float]:
    """Return accuracy and mean loss."""
    labels = torch.from_numpy(examples.labels)
    logits = _load(model)(torch.from_numpy(examples.images))
    accuracy = (logits.argmax(dim=1) == labels).float().mean()
    return float(accuracy), float(cross_entropy(logits, labels))


def _load(model: Model) -> nn.Sequential:
    """A module of its own with these weights; the tensors given stay as they are."""
    module = network()
    module.load_state_dict(model)
    return module
