"""Strategies without rounds: a new model as soon as some updates have come, whoever is still at work on an older one.

The server gives a client its next task as soon as its update is folded. A "round" is a model: its report has the
updates that made it.
"""

from __future__ import annotations

import math
import uuid
from typing import Any

from fl.aggregation.mean import WeightedMean
from fl.errors import InvalidUpdate
from fl.messages import Update
from fl.strategies.base import Discount, Strategy, polynomial, within
from fl.tensors.model import is_difference
from fl.tensors.spec import Model, zeros_like
from netq.validate import whole


class FedAsync(Strategy):
    """Asynchronous averaging: each update moves the model towards itself, the less the staler it is.

    Source: Xie et al., 2019, "Asynchronous federated optimization", algorithm 1. `mixing`: the paper's alpha.
    `staleness`: its s; see fl.polynomial and fl.hinge.
    """

    buffer = 1

    def __init__(self, mixing: float = 0.6, staleness: Discount | str | None = None, **options: Any) -> None:
        super().__init__(staleness=staleness or polynomial(0.5), **options)
        self._mixing = within("mixing", mixing, 0, 1)
        self._factor = 0.0

    def begin(self, model: Model) -> None:
        """Make the memory of an update."""
        self._mean = WeightedMean(model)

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Take the update."""
        self._mean.fold(update.model, 1.0)
        self._factor = self._mixing * self.discount(staleness)

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the model moved towards the update."""
        return self._mean.finish_towards(model, self._factor)

    def abandon(self) -> None:
        """Forget the update."""
        self._mean.reset()


class FedBuff(Strategy):
    """Buffered asynchronous aggregation: the changes of some clients, from whatever model each began with.

    Source: Nguyen et al., 2022, "Federated learning with buffered asynchronous aggregation", algorithm 1. `size`: of
    the buffer, the paper's K. `staleness`: the weight of a change by how many models have been made since it began.
    """

    deltas = True

    def __init__(
        self, size: int = 10, learning_rate: float = 1.0, staleness: Discount | str | None = None, **options: Any
    ) -> None:
        super().__init__(staleness=staleness or polynomial(0.5), **options)
        self.buffer = whole("size", size, 1)
        self._rate = within("learning_rate", learning_rate, 0, math.inf)

    def begin(self, model: Model) -> None:
        """Make the memory of the mean change."""
        self._mean = WeightedMean(model)
        self._differences = {name for name, tensor in model.items() if is_difference(name, tensor)}
        if missing := zeros_like(model).keys() - self._differences:
            names = ", ".join(sorted(missing))
            raise InvalidUpdate(f"FedBuff adds changes, and has none of {names}; expected float16, float32 or float64")

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Add to the mean change."""
        self._mean.fold(update.model, self.discount(staleness))

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the model with the mean change added; stale changes count for less, in the sum too."""
        self._mean.require()
        factor = self._rate * self._mean.weight / self._mean.count
        for block in self._mean.blocks(model):
            if block.name in self._differences:  # the others are means as they are
                block.value *= factor
                block.value += block.model
        return self._mean.finish()

    def abandon(self) -> None:
        """Start over."""
        self._mean.reset()
