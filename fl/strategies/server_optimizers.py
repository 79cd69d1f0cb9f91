"""Server optimisers: momentum, Adagrad, Adam and Yogi, with the change of a round as the (negative) gradient.

The change is the mean of the clients' models minus the model that they were sent. Each optimiser works block by block
in the memory of the mean, and keeps one or two models of state. Integers and bools take their mean without a step.

Sources: Hsu et al., 2019, "Measuring the effects of non-identical data distribution for federated visual
classification" (momentum); Reddi et al., 2021, "Adaptive federated optimization", algorithm 2 (the others; as there,
without bias correction, and the second moment begins at the square of `adaptivity`).
"""

from __future__ import annotations

import functools
import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl.aggregation.mean import Block
from fl.errors import CheckpointError
from fl.strategies.base import within

Arrays = dict[str, NDArray[Any]]

_ADAPTIVITY = (1e-30, 1e18)  # range in which the value and its square are positive finite float32 numbers


class Optimizer(Protocol):
    """Turns the mean of FedAvg into the next model. `state` and `restore` are as those of Strategy."""

    def step(self, block: Block) -> None:
        """Replace the mean in `block.value` by the next model."""

    def reset(self) -> None:
        """Reset the state to that before the first round."""

    def state(self) -> dict[str, Any]:
        """Return the state that is kept from round to round."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""


class Slots:
    """Optimiser state with one number for each element of the model, allocated on first use."""

    def __init__(self, initial: float = 0.0) -> None:
        self._initial = initial
        self.arrays: Arrays = {}

    def of(self, block: Block) -> NDArray[Any]:
        """Return the numbers of a block, to be changed in place."""
        if block.name not in self.arrays:
            self.arrays[block.name] = np.full(block.size, self._initial, block.value.dtype)
        return self.arrays[block.name][block.start : block.stop]

    def restore(self, arrays: object) -> None:
        """Continue from arrays of a checkpoint. Raises CheckpointError for other values."""
        if not isinstance(arrays, dict) or not all(map(_is_slot, arrays.values())):
            raise CheckpointError(f"a state of its optimizer is {reprlib.repr(arrays)}; expected flat arrays by name")
        self.arrays = dict(arrays)


def _is_slot(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "fc"


class Momentum:
    """velocity = momentum * velocity + change; model += learning_rate * velocity."""

    def __init__(self, learning_rate: float = 1.0, momentum: float = 0.9) -> None:
        self._rate = within("learning_rate", learning_rate, 0, math.inf)
        self._momentum = within("momentum", momentum, 0, 1, include_low=True)
        self._velocity = Slots()

    def step(self, block: Block) -> None:
        """Replace the mean in the block by the next model."""
        velocity = self._velocity.of(block)
        velocity *= self._momentum
        velocity += block.value - block.model
        np.multiply(velocity, self._rate, out=block.value)
        block.value += block.model

    def reset(self) -> None:
        """Set the velocity to 0."""
        self._velocity.arrays.clear()

    def state(self) -> dict[str, Any]:
        """Return the velocity."""
        return {"velocity": self._velocity.arrays}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a velocity."""
        self._velocity.restore(state["velocity"])


class Adaptive:
    """first = beta_1 * first + (1 - beta_1) * change; model += learning_rate * first / (sqrt(second) + adaptivity).

    moment: updates the second moment; it makes the difference between Adagrad, Adam and Yogi.
    """

    def __init__(self, moment: Moment, learning_rate: float, beta_1: float, adaptivity: float) -> None:
        self._moment = moment
        self._rate = within("learning_rate", learning_rate, 0, math.inf)
        self._beta_1 = within("beta_1", beta_1, 0, 1, include_low=True)
        self._adaptivity = within("adaptivity", adaptivity, *_ADAPTIVITY, include_low=True)
        self._first, self._second = Slots(), Slots(adaptivity**2)

    def step(self, block: Block) -> None:
        """Replace the mean in the block by the next model."""
        change = block.value
        change -= block.model
        first, second = self._first.of(block), self._second.of(block)
        first *= self._beta_1
        first += (1 - self._beta_1) * change
        np.multiply(change, np.conj(change), out=change)  # the square of the absolute value, also of complex numbers
        self._moment(second, change)
        np.divide(first, np.sqrt(second) + self._adaptivity, out=block.value)
        block.value *= self._rate
        block.value += block.model

    def reset(self) -> None:
        """Reset both moments."""
        self._first.arrays.clear()
        self._second.arrays.clear()

    def state(self) -> dict[str, Any]:
        """Return both moments."""
        return {"first": self._first.arrays, "second": self._second.arrays}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from both moments."""
        self._first.restore(state["first"])
        self._second.restore(state["second"])


# Updates the second moment, in place, from the squares of the changes.
Moment: TypeAlias = Callable[[NDArray[Any], NDArray[Any]], None]


def adagrad(second: NDArray[Any], square: NDArray[Any]) -> None:
    """Sum the squares."""
    second += square


def adam(beta_2: float) -> Moment:
    """Average the squares exponentially."""
    within("beta_2", beta_2, 0, 1, include_low=True)
    return functools.partial(_adam, beta_2)


def _adam(beta_2: float, second: NDArray[Any], square: NDArray[Any]) -> None:
    second *= beta_2
    second += (1 - beta_2) * square


def yogi(beta_2: float) -> Moment:
    """Move towards the squares by a step that is proportional to the square, not to the difference."""
    within("beta_2", beta_2, 0, 1, include_low=True)
    return functools.partial(_yogi, beta_2)


def _yogi(beta_2: float, second: NDArray[Any], square: NDArray[Any]) -> None:
    second -= (1 - beta_2) * square * np.sign(second - square)
