"""Asynchronous strategies: a new model after a fixed number of updates, while other clients still train older models.

The server gives a client its next task as soon as its update is folded. A "round" of the report is one model, and lists
the updates that went into it.
"""

from __future__ import annotations

import math
import uuid
from typing import Any

from fl.errors import InvalidUpdate
from fl.messages import Update
from fl.strategies.base import Discount, MeanStrategy, polynomial, within
from fl.tensors.dtypes import DELTA_DTYPES
from fl.tensors.model import is_difference
from fl.tensors.spec import Model, zeros_like
from netq.validate import whole


class FedAsync(MeanStrategy):
    """Asynchronous averaging: each update moves the model towards itself, by less the staler it is.

    mixing:    how far an update moves the model; the paper's alpha.
    staleness: the paper's s; see fl.polynomial and fl.hinge.

    Source: Xie et al., 2019, "Asynchronous federated optimization", algorithm 1.
    """

    buffer = 1
    roles = ("trained", "averaged", "unit")  # the model moves by less than the whole way, and its statistics with it

    def __init__(self, mixing: float = 0.6, staleness: Discount | str | None = None, **options: Any) -> None:
        super().__init__(staleness=staleness or polynomial(0.5), **options)
        self._mixing = within("mixing", mixing, 0, 1)
        self._factor = 0.0

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Store the update and the factor of the move."""
        self._mean.fold(update.model, 1.0)
        self._factor = min(1.0, self._mixing * self.discount(staleness))

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the model, moved towards the update."""
        return self._mean.finish_towards(model, self._factor)


class FedBuff(MeanStrategy):
    """Buffered asynchronous aggregation: adds the mean of K changes, each relative to the model that its client got.

    size:          number of changes to a new model; the paper's K.
    learning_rate: of the server.
    staleness:     weight of a change as a function of the number of models made since its client began.

    Source: Nguyen et al., 2022, "Federated learning with buffered asynchronous aggregation", algorithm 1.
    """

    deltas = True

    def __init__(
        self, size: int = 10, learning_rate: float = 1.0, staleness: Discount | str | None = None, **options: Any
    ) -> None:
        super().__init__(staleness=staleness or polynomial(0.5), **options)
        self.buffer = whole("size", size, 1)
        self._rate = within("learning_rate", learning_rate, 0, math.inf)

    def begin(self, model: Model) -> None:
        """Allocate the memory of the mean change. Raises InvalidUpdate for dtypes that have no differences."""
        super().begin(model)
        self._differences = {name for name, tensor in model.items() if is_difference(name, tensor)}
        if missing := zeros_like(model).keys() - self._differences:
            names = ", ".join(sorted(missing))
            expected = ", ".join(DELTA_DTYPES)
            raise InvalidUpdate(f"FedBuff adds changes, and has none of {names}; expected one of {expected}")

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Fold the change into the mean."""
        self._mean.fold(update.model, self.discount(staleness))

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the model plus the mean change.

        The paper divides by K, not by the sum of the weights: a buffer of stale changes moves the model by less.
        """
        self._mean.require()
        factor = self._rate * self._mean.weight / self._mean.count
        for block in self._mean.blocks(model):
            if block.name in self._differences:  # other tensors are sent as values: their mean is the result
                block.value *= factor
                block.value += block.model
        return self._mean.finish()
