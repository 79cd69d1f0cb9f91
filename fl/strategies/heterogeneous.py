"""Strategies that weigh what clients did, and not only how many examples they have: QFedAvg, FedNova, SCAFFOLD.

Each folds updates as they arrive into a mean with weights of its own, and moves the model towards it by a factor of its
own: the sums of the papers, rearranged. Memory is one model's worth, and for SCAFFOLD three more of its variates.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from fl.aggregation.mean import WeightedMean
from fl.errors import InvalidUpdate
from fl.messages import Update
from fl.strategies.base import Strategy, within
from fl.tensors.model import check, squared_distance
from fl.tensors.spec import Model, zeros_like

_LARGEST = 1e9  # a loss, or a number of steps
_SMALLEST = 1e-10  # a loss; that of a perfect model is raised to a negative power
_MOST_Q = 30  # to it, the largest and the smallest loss are floats


class QFedAvg(Strategy):
    """Fair averaging: clients on whose data the round's model does worse weigh more.

    Source: Li et al., 2020, "Fair resource allocation in federated learning", algorithm 2. `q`: how fair, 0 for equal
    weights. `learning_rate`: that of the clients' training (the paper's 1/L). Each update brings, in its metrics under
    `loss`, the mean loss of the round's model on the client's data before it trained.
    """

    def __init__(self, q: float = 0.1, learning_rate: float = 0.1, loss: str = "loss", **options: Any) -> None:
        super().__init__(**options)
        self._q = within("q", q, 0, _MOST_Q, include_low=True)
        self._smoothness = 1 / within("learning_rate", learning_rate, 0, math.inf)
        self._loss = loss

    def begin(self, model: Model) -> None:
        """Make the mean's memory."""
        self._mean = WeightedMean(model)
        self._normaliser = 0.0

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Add to the mean with a weight of loss ** q, and to the sum that bounds the step."""
        loss, discount = max(_metric(update, self._loss, 0.0), _SMALLEST), self.discount(staleness)
        weight = loss**self._q
        square = self._smoothness**2 * squared_distance(model, update.model)
        more = discount * (self._q * loss ** (self._q - 1) * square + self._smoothness * weight)
        if not math.isfinite(self._normaliser + more):
            raise InvalidUpdate(
                f"it is so far from the model, or its loss of {loss:g} so large, that no float holds it"
            )
        self._mean.fold(update.model, weight * discount)
        self._normaliser += more

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the model moved towards the mean, by as much as the losses allow."""
        self._mean.require()
        factor = self._smoothness * self._mean.weight / self._normaliser
        self._normaliser = 0.0
        return self._mean.finish_towards(model, factor)

    def abandon(self) -> None:
        """Start over."""
        self._mean.reset()
        self._normaliser = 0.0


class FedNova(Strategy):
    """Normalised averaging: clients that take more local steps than others do not pull the model to themselves.

    Source: Wang et al., 2020, "Tackling the objective inconsistency problem in heterogeneous federated optimization",
    equation 6, with weights by numbers of examples. Each update brings, in its metrics under `steps`, how many steps
    its client took; with local momentum, the norm of the paper's a_i.
    """

    def __init__(self, steps: str = "steps", **options: Any) -> None:
        super().__init__(**options)
        self._steps = steps

    def begin(self, model: Model) -> None:
        """Make the mean's memory."""
        self._mean = WeightedMean(model)
        self._examples = self._work = 0.0

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Add to the mean of changes by step."""
        steps, examples = _metric(update, self._steps, 1.0), update.num_examples * self.discount(staleness)
        self._mean.fold(update.model, examples / steps)
        self._examples += examples
        self._work += examples * steps

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the model moved by the mean change by step, times the mean number of steps."""
        self._mean.require()
        factor = self._work / self._examples * self._mean.weight / self._examples
        self._examples = self._work = 0.0
        return self._mean.finish_towards(model, factor)

    def abandon(self) -> None:
        """Start over."""
        self._mean.reset()
        self._examples = self._work = 0.0


class Scaffold(Strategy):
    """SCAFFOLD: control variates at server and clients correct for what clients' data have of their own.

    Source: Karimireddy et al., 2020, "SCAFFOLD: stochastic controlled averaging for federated learning", algorithm 1,
    option II. The server's variate travels with the task (config["control"]); a client trains with fl.ControlVariate,
    and returns the change of its own in Update.extra. All clients weigh the same, as in the paper.
    """

    def __init__(self, learning_rate: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self._rate = within("learning_rate", learning_rate, 0, math.inf)
        self._clients = 1  # that are connected
        self._control: Model = {}

    def begin(self, model: Model) -> None:
        """Make the memory of both means."""
        self._control = self._control or zeros_like(model)
        self._mean, self._changes = WeightedMean(model), WeightedMean(self._control)

    def select(self, number: int, clients: Sequence[uuid.UUID]) -> Sequence[uuid.UUID]:
        """Return those of the connected clients that take part, as every strategy does."""
        self._clients = len(clients)
        return super().select(number, clients)

    def config(self, number: int) -> Mapping[str, Any]:
        """Return what the clients are told, with the server's control variate."""
        return {**super().config(number), "control": self._control}

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Add to the means of the models and of the variates' changes."""
        try:
            check(update.extra, like=self._control)
        except InvalidUpdate as error:
            why = "expected the change of its control variate, as fl.ControlVariate gives it"
            raise InvalidUpdate(f"in Update.extra {error}; {why}") from None
        self._mean.fold(update.model, self.discount(staleness))
        self._changes.fold(update.extra, self.discount(staleness))

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the next model, and change the control variate."""
        share = self._changes.count / max(self._clients, self._changes.count)
        for block in self._changes.blocks(self._control):
            block.value *= share
            block.value += block.model
        self._control = self._changes.finish()
        return self._mean.finish_towards(model, self._rate)

    def abandon(self) -> None:
        """Start over."""
        self._mean.reset()
        self._changes.reset()

    def reject(self) -> None:
        """Start over, with the control variate too."""
        self.abandon()
        self._control = zeros_like(self._control)

    def state(self) -> dict[str, Any]:
        """Return the control variate."""
        return {"control": self._control}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a control variate."""
        self._control = dict(state["control"])


def _metric(update: Update, name: str, least: float) -> float:
    """Return a metric that the strategy cannot do without."""
    expected = f"a number of {least:g} or more from every client, and {_LARGEST:g} at most"
    if name not in update.metrics:
        raise InvalidUpdate(f"its metrics have no {name!r}; expected {expected}")
    value = update.metrics[name]
    if not least <= value <= _LARGEST:
        raise InvalidUpdate(f"metrics[{name!r}] is {value:g}; expected {expected}")
    return value
