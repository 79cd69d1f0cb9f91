"""FedAvg and its variants: the next model is the weighted mean of the updates, or an optimiser step towards it.

Updates are folded as they arrive (fl/aggregation/mean.py), in the memory of one model for any number of clients. Each
class also takes the options of Strategy.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Any

from fl.errors import CheckpointError
from fl.messages import Update
from fl.strategies.base import MeanStrategy, within
from fl.strategies.server_optimizers import Adaptive, Momentum, Optimizer, adagrad, adam, yogi
from fl.tensors.spec import Model


class FedAvg(MeanStrategy):
    """Federated averaging: the mean of the clients' models, weighted by numbers of examples.

    optimizer: makes the next model from the mean (fl/strategies/server_optimizers.py); None: the mean is the model.

    Source: McMahan et al., 2017, "Communication-efficient learning of deep networks from decentralized data",
    algorithm 1.
    """

    def __init__(self, *, optimizer: Optimizer | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._optimizer = optimizer

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Fold the model into the mean."""
        self._mean.fold(update.model, update.num_examples * self.discount(staleness))

    @property
    def takes_means(self) -> bool:
        """Whether no subclass folds in another way."""
        return next(each for each in type(self).__mro__ if "fold" in vars(each)) is FedAvg

    @property
    def is_mean(self) -> bool:
        """Whether the next model is the mean of the updates by the examples that clients know, and nothing more."""
        is_own = type(self).finish is FedAvg.finish and type(self).examples is FedAvg.examples
        return is_own and self.takes_means and self._optimizer is None

    def partial(self) -> dict[str, Any]:
        """Return the mean of what was folded, and its weight."""
        return self._mean.partial()

    def merge(self, partial: Mapping[str, Any]) -> None:
        """Fold a mean by its weight."""
        self._mean.merge(partial)

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the mean, or the optimizer's step from `model` towards it."""
        if self._optimizer is not None:
            for block in self._mean.blocks(model):
                self._optimizer.step(block)
        return self._mean.finish()

    def reject(self) -> None:
        """Discard the updates, and reset the optimizer."""
        self.abandon()
        if self._optimizer is not None:
            self._optimizer.reset()

    def state(self) -> dict[str, Any]:
        """Return the state of the optimizer."""
        return {} if self._optimizer is None else self._optimizer.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizer. Raises CheckpointError for a state without an optimizer to restore."""
        if self._optimizer is not None:
            self._optimizer.restore(state)
        elif state:
            ours, kept = type(self).__name__, " and ".join(state)
            raise CheckpointError(f"there is {kept}, and this {ours} has no optimizer for it; give the one that it had")


class FedProx(FedAvg):
    """FedAvg whose clients stay near the round's model: they read `proximal_mu` from the config for `fl.proximal_term`.

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
        super().__init__(optimizer=Adaptive(adagrad, learning_rate, beta_1, adaptivity), **options)


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
