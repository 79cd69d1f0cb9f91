"""Strategies whose next model comes of a mean of the clients': FedAvg and what is made of it.

Each folds updates as they arrive, in one model's worth of memory, however many clients there are
(fl/aggregation/mean.py). The options of every Strategy are options of each.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Any

from fl.aggregation.mean import WeightedMean
from fl.errors import CheckpointError
from fl.messages import Update
from fl.strategies.base import Strategy, within
from fl.strategies.server_optimizers import Adaptive, Momentum, Optimizer, adagrad, adam, yogi
from fl.tensors.spec import Model


class FedAvg(Strategy):
    """Federated averaging: the mean of the clients' models by their numbers of examples.

    Source: McMahan et al., 2017, "Communication-efficient learning of deep networks from decentralized data",
    algorithm 1. `optimizer`: what is done with the mean (fl/strategies/server_optimizers.py); None: it is the next
    model.
    """

    def __init__(self, *, optimizer: Optimizer | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._optimizer = optimizer

    def begin(self, model: Model) -> None:
        """Make the mean's memory."""
        self._mean = WeightedMean(model)

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Add to the mean, in place."""
        self._mean.fold(update.model, update.num_examples * self.discount(staleness))

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the mean, or what the optimizer makes of it."""
        if self._optimizer is not None:
            for block in self._mean.blocks(model):
                self._optimizer.step(block)
        return self._mean.finish()

    def abandon(self) -> None:
        """Start over."""
        self._mean.reset()

    def reject(self) -> None:
        """Start over, the optimizer too."""
        self.abandon()
        if self._optimizer is not None:
            self._optimizer.reset()

    def state(self) -> dict[str, Any]:
        """Return the optimizer's."""
        return {} if self._optimizer is None else self._optimizer.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Give it back to the optimizer. Raises CheckpointError, if there is none now."""
        if self._optimizer is not None:
            self._optimizer.restore(state)
        elif state:
            ours, kept = type(self).__name__, " and ".join(state)
            raise CheckpointError(f"there is {kept}, and this {ours} has no optimizer for it; give the one that it had")


class FedProx(FedAvg):
    """FedAvg whose clients stay near the round's model: they are told `proximal_mu`, and use `fl.proximal_term`.

    Source: Li et al., 2020, "Federated optimization in heterogeneous networks", algorithm 2.
    """

    def __init__(self, mu: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self._config["proximal_mu"] = within("mu", mu, 0, math.inf, include_low=True)


class FedAvgM(FedAvg):
    """FedAvg with momentum at the server (Hsu et al., 2019): see fl.strategies.server_optimizers.Momentum."""

    def __init__(self, learning_rate: float = 1.0, momentum: float = 0.9, **options: Any) -> None:
        super().__init__(optimizer=Momentum(learning_rate, momentum), **options)


class FedAdagrad(FedAvg):
    """FedAvg with Adagrad at the server (Reddi et al., 2021): see fl.strategies.server_optimizers.Adaptive."""

    def __init__(
        self, learning_rate: float = 0.1, beta_1: float = 0.0, adaptivity: float = 1e-3, **options: Any
    ) -> None:
        super().__init__(optimizer=Adaptive(adagrad(), learning_rate, beta_1, adaptivity), **options)


class FedAdam(FedAvg):
    """FedAvg with Adam at the server (Reddi et al., 2021): see fl.strategies.server_optimizers.Adaptive."""

    def __init__(
        self,
        learning_rate: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        adaptivity: float = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(optimizer=Adaptive(adam(beta_2), learning_rate, beta_1, adaptivity), **options)


class FedYogi(FedAvg):
    """FedAvg with Yogi at the server (Reddi et al., 2021): see fl.strategies.server_optimizers.Adaptive."""

    def __init__(
        self,
        learning_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        adaptivity: float = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(optimizer=Adaptive(yogi(beta_2), learning_rate, beta_1, adaptivity), **options)
