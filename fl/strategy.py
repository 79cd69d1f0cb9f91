"""Who trains, with what configuration, and how their updates become the next model.

A strategy is called by one thread, the server's, in this order: `select`, `config`, `fold` for each update as
it arrives, `finish`. It never sees a socket. Whatever it refuses with InvalidUpdate counts as that client's
failure, and must have changed nothing.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fl.aggregate import Model, WeightedMean
from fl.messages import Update


class Strategy(Protocol):
    """What fl.Server asks of a strategy."""

    def select(self, number: int, clients: Sequence[uuid.UUID]) -> Sequence[uuid.UUID]:
        """Return those of the connected clients that take part in round `number` (1, 2, …)."""

    def config(self, number: int) -> Mapping[str, Any]:
        """Return what the clients are told beside the model. Plain values: numbers, texts, lists, dicts."""

    def fold(self, model: Model, update: Update) -> None:
        """Take in an update of `model`. It is the server's again afterwards. Raises InvalidUpdate."""

    def finish(self, model: Model) -> Model:
        """Return the model that follows `model`, of the updates folded since the last call."""

    def abandon(self) -> None:
        """Forget the updates folded since the last `finish`: the round does not count."""


class FedAvg:
    """Federated averaging: the mean of the clients' models by their numbers of examples.

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

    fraction: how many of the clients take part in a round, from above 0 to 1; one at least. Drawn by `seed` and round.
    config:   what the clients are told in every round.
    """

    def __init__(self, fraction: float = 1.0, config: Mapping[str, Any] | None = None, seed: int = 0) -> None:
        if not 0 < fraction <= 1:
            raise ValueError(f"FedAvg.fraction: {fraction!r}; expected more than 0, and 1 at most")
        self._fraction = fraction
        self._config = dict(config or {})
        self._seed = seed
        self._mean: WeightedMean | None = None

    def select(self, number: int, clients: Sequence[uuid.UUID]) -> Sequence[uuid.UUID]:
        """Draw the fraction, at random but reproducibly."""
        count = max(1, round(self._fraction * len(clients)))
        return random.Random(f"{self._seed} {number}").sample(sorted(clients), min(count, len(clients)))

    def config(self, number: int) -> Mapping[str, Any]:
        """Return the same in every round."""
        return self._config

    def fold(self, model: Model, update: Update) -> None:
        """Add to the mean, in place."""
        if self._mean is None:
            self._mean = WeightedMean(model)
        self._mean.fold(update.model, update.num_examples)

    def finish(self, model: Model) -> Model:
        """Return the mean."""
        assert self._mean is not None  # the server finishes only rounds in which something was folded
        mean = self._mean.finish()
        self._mean.reset()
        return mean

    def abandon(self) -> None:
        """Start over."""
        if self._mean is not None:
            self._mean.reset()
