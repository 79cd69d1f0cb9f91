"""What a server does with the mean of a round beyond taking it: optimisers, with the round's change as gradient.

The change is the mean of the clients' models minus the model that they were sent. Each optimiser works block by block
in the mean's own memory, and keeps one or two models of its own. Whole numbers and bools take their mean as it is.

Sources: Hsu et al., 2019, "Measuring the effects of non-identical data distribution for federated visual
classification" (momentum); Reddi et al., 2021, "Adaptive federated optimization", algorithm 2 (the others; as there,
without bias correction, and the second moment begins at the square of `adaptivity`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fl.aggregation.mean import Block
from fl.strategies.base import within

Arrays = dict[str, NDArray[Any]]

_ADAPTIVITY = (1e-30, 1e18)  # as a float32 it is more than 0, and its square is one too


class Optimizer(Protocol):
    """What FedAvg does with its mean. `state` and `restore` are a strategy's."""

    def step(self, block: Block) -> None:
        """Write the next model into `block.value`, which holds the mean."""

    def reset(self) -> None:
        """Forget all rounds."""

    def state(self) -> dict[str, Any]:
        """Return what is kept from round to round."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from it."""


class Slots:
    """A number for each element of a model, from round to round."""

    def __init__(self, initial: float = 0.0) -> None:
        self._initial = initial
        self.arrays: Arrays = {}

    def of(self, block: Block) -> NDArray[Any]:
        """Return those of a block, to be changed in place."""
        if block.name not in self.arrays:
            self.arrays[block.name] = np.full(block.size, self._initial, block.value.dtype)
        return self.arrays[block.name][block.start : block.stop]


class Momentum:
    """velocity = momentum * velocity + change; model += learning_rate * velocity."""

    def __init__(self, learning_rate: float = 1.0, momentum: float = 0.9) -> None:
        self._rate = within("learning_rate", learning_rate, 0, math.inf)
        self._momentum = within("momentum", momentum, 0, 1, include_low=True)
        self._velocity = Slots()

    def step(self, block: Block) -> None:
        """Write the next model into the block."""
        velocity = self._velocity.of(block)
        velocity *= self._momentum
        velocity += block.value - block.model
        np.multiply(velocity, self._rate, out=block.value)
        block.value += block.model

    def reset(self) -> None:
        """Stand still."""
        self._velocity.arrays.clear()

    def state(self) -> dict[str, Any]:
        """Return the velocity."""
        return {"velocity": self._velocity.arrays}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a velocity."""
        self._velocity.arrays = dict(state["velocity"])


class Adaptive:
    """first = beta_1 * first + (1 - beta_1) * change; model += learning_rate * first / (sqrt(second) + adaptivity).

    What becomes of the second moment, `moment` says.
    """

    def __init__(self, moment: Moment, learning_rate: float, beta_1: float, adaptivity: float) -> None:
        self._moment = moment
        self._rate = within("learning_rate", learning_rate, 0, math.inf)
        self._beta_1 = within("beta_1", beta_1, 0, 1, include_low=True)
        self._adaptivity = within("adaptivity", adaptivity, *_ADAPTIVITY, include_low=True)
        self._first, self._second = Slots(), Slots(adaptivity**2)

    def step(self, block: Block) -> None:
        """Write the next model into the block."""
        change = block.value
        change -= block.model
        first, second = self._first.of(block), self._second.of(block)
        first *= self._beta_1
        first += (1 - self._beta_1) * change
        np.multiply(change, np.conj(change), out=change)
        self._moment(second, change)
        np.divide(first, np.sqrt(second) + self._adaptivity, out=block.value)
        block.value *= self._rate
        block.value += block.model

    def reset(self) -> None:
        """Begin both moments anew."""
        self._first.arrays.clear()
        self._second.arrays.clear()

    def state(self) -> dict[str, Any]:
        """Return both moments."""
        return {"first": self._first.arrays, "second": self._second.arrays}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from both moments."""
        self._first.arrays, self._second.arrays = dict(state["first"]), dict(state["second"])


class Moment(Protocol):
    """How the second moment follows the squares of the changes."""

    def __call__(self, second: NDArray[Any], square: NDArray[Any]) -> None:
        """Change `second` in place."""


def adagrad() -> Moment:
    """Add them up."""

    def moment(second: NDArray[Any], square: NDArray[Any]) -> None:
        second += square

    return moment


def adam(beta_2: float) -> Moment:
    """Take their running mean."""
    within("beta_2", beta_2, 0, 1, include_low=True)

    def moment(second: NDArray[Any], square: NDArray[Any]) -> None:
        second *= beta_2
        second += (1 - beta_2) * square

    return moment


def yogi(beta_2: float) -> Moment:
    """Go towards them by a step that their own size bounds."""
    within("beta_2", beta_2, 0, 1, include_low=True)

    def moment(second: NDArray[Any], square: NDArray[Any]) -> None:
        second -= (1 - beta_2) * square * np.sign(second - square)

    return moment
