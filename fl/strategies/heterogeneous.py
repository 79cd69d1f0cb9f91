"""Strategies for clients whose data or work differ.

Each folds updates as they arrive into a mean with its own weights, and moves the model towards the mean by its own
factor. This is the sum of each paper, rearranged. The memory is one model; SCAFFOLD needs three more for its variates.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from fl.aggregation.mean import WeightedMean
from fl.errors import InvalidUpdate
from fl.messages import Update
from fl.strategies.base import MeanStrategy, within
from fl.tensors.model import check, squared_distance
from fl.tensors.spec import Model, zeros_like
from netq.validate import is_whole

_MAX_METRIC = 1e9  # of a loss, or a number of steps
_MIN_LOSS = 1e-10  # a smaller loss counts as this: it is raised to a negative power, and may be 0
_MAX_Q = 30  # _MAX_METRIC and _MIN_LOSS to this power are finite floats above 0


class QFedAvg(MeanStrategy):
    """Fair averaging: a client on whose data the round's model has a larger loss weighs more.

    q:             degree of fairness; 0 gives equal weights.
    learning_rate: of the clients' training; the paper's 1/L.
    loss:          name of the metric of each update with the mean loss of the round's model on the client's data,
                   measured before training.

    Source: Li et al., 2020, "Fair resource allocation in federated learning", algorithm 2.
    """

    _normaliser = 0.0

    @property
    def folding(self) -> dict[str, Any]:
        """See Strategy."""
        return {**super().folding, "q": self._q, "learning_rate": 1 / self._smoothness, "loss": self._loss}

    def __init__(self, q: float = 0.1, learning_rate: float = 0.1, loss: str = "loss", **options: Any) -> None:
        super().__init__(**options)
        self._q = within("q", q, 0, _MAX_Q, include_low=True)
        self._smoothness = 1 / within("learning_rate", learning_rate, 0, math.inf)
        self._loss = loss

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Fold the model with a weight of loss ** q, and add to the sum that limits the step."""
        loss, discount = max(_metric(update, self._loss, 0.0), _MIN_LOSS), self.discount(staleness)
        weight = loss**self._q
        square = self._smoothness**2 * squared_distance(model, update.model)
        more = discount * (self._q * loss ** (self._q - 1) * square + self._smoothness * weight)
        if not math.isfinite(self._normaliser + more):
            check(update.model, like=model)  # names the tensor, if the update itself is not finite
            raise InvalidUpdate(
                f"it is so far from the model, or its loss of {loss:g} so large, that no float holds it"
            )
        self._mean.fold(update.model, weight * discount)
        self._normaliser += more

    def partial(self) -> dict[str, Any]:
        """Return the mean, and the sum that limits the step."""
        normaliser, self._normaliser = self._normaliser, 0.0
        return {"mean": self._mean.partial(), "normaliser": normaliser}

    def merge(self, partial: Mapping[str, Any]) -> None:
        """Fold a mean, and add to the sum."""
        more = _sum(partial, "normaliser")
        self._mean.merge(partial["mean"])
        self._normaliser += more

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the model, moved towards the mean by the step that the losses allow."""
        self._mean.require()
        # The paper: w - sum(L * F_k**q * (w - w_k)) / sum(h_k), with L the smoothness. Let m be the mean by weights
        # F_k**q, and W their sum: the first sum is L * W * (w - m).
        factor = self._smoothness * self._mean.weight / self._normaliser
        self._normaliser = 0.0
        return self._mean.finish_towards(model, factor)

    def abandon(self) -> None:
        """Discard the updates."""
        super().abandon()
        self._normaliser = 0.0


class FedNova(MeanStrategy):
    """Normalised averaging: a client that takes more local steps than others does not bias the model to its data.

    steps: name of the metric of each update with the number of local steps; with local momentum, the norm of the
           paper's a_i.

    Source: Wang et al., 2020, "Tackling the objective inconsistency problem in heterogeneous federated optimization",
    equation 6, with weights by numbers of examples.
    """

    _examples = _work = 0.0

    @property
    def folding(self) -> dict[str, Any]:
        """See Strategy."""
        return {**super().folding, "steps": self._steps}

    def __init__(self, steps: str = "steps", **options: Any) -> None:
        super().__init__(**options)
        self._steps = steps

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Fold the change per step into the mean."""
        steps, examples = _metric(update, self._steps, 1.0), update.num_examples * self.discount(staleness)
        self._mean.fold(update.model, examples / steps)
        self._examples += examples
        self._work += examples * steps

    def partial(self) -> dict[str, Any]:
        """Return the mean change per step, and the sums of examples and of steps."""
        sums = {"examples": self._examples, "work": self._work}
        self._examples = self._work = 0.0
        return {"mean": self._mean.partial(), **sums}

    def merge(self, partial: Mapping[str, Any]) -> None:
        """Fold a mean, and add to the sums."""
        examples, work = _sum(partial, "examples"), _sum(partial, "work")
        self._mean.merge(partial["mean"])
        self._examples += examples
        self._work += work

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the model plus the mean change per step times the mean number of steps."""
        self._mean.require()
        # The paper: w + tau_eff * sum(n_i / n * (w_i - w) / tau_i), with tau_eff = sum(n_i / n * tau_i). Let m be the
        # mean by weights n_i / tau_i, and W their sum: the first sum is W / n * (m - w).
        factor = self._work / self._examples * self._mean.weight / self._examples
        self._examples = self._work = 0.0
        return self._mean.finish_towards(model, factor)

    def abandon(self) -> None:
        """Discard the updates."""
        super().abandon()
        self._examples = self._work = 0.0


class Scaffold(MeanStrategy):
    """SCAFFOLD: control variates of the server and of the clients correct the drift of clients with different data.

    The server's variate is sent with the task (config["control"]). A client trains with fl.ControlVariate, and returns
    the change of its own variate in Update.extra. All clients have the same weight, as in the paper.

    learning_rate: of the server.

    Source: Karimireddy et al., 2020, "SCAFFOLD: stochastic controlled averaging for federated learning", algorithm 1,
    option II.
    """

    def __init__(self, learning_rate: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self._rate = within("learning_rate", learning_rate, 0, math.inf)
        self._clients = 0  # connected clients, of relays too; the paper's N
        self._control: Model = {}

    def begin(self, model: Model) -> None:
        """Allocate the memory of the means of models and of variate changes."""
        self._control = self._control or zeros_like(model)
        self._changes = WeightedMean(self._control)
        super().begin(model)

    def select(self, number: int, clients: Sequence[uuid.UUID]) -> Sequence[uuid.UUID]:
        """Select clients as Strategy does, and store the number of connected clients for `finish`."""
        self._clients = len(clients)
        return super().select(number, clients)

    def config(self, number: int) -> Mapping[str, Any]:
        """Return the config with the server's control variate."""
        return {**super().config(number), "control": self._control}

    def fold(self, model: Model, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
        """Fold the model, and the change of the client's variate."""
        try:
            check(update.extra, like=self._control)
        except InvalidUpdate as error:
            why = "expected the change of its control variate, as fl.ControlVariate gives it"
            raise InvalidUpdate(f"in Update.extra {error}; {why}") from None
        self._mean.fold(update.model, self.discount(staleness))
        self._changes.fold(update.extra, self.discount(staleness))

    def partial(self) -> dict[str, Any]:
        """Return the means of models and of variate changes, and how many clients `select` has had."""
        clients, self._clients = self._clients, 0
        return {"mean": self._mean.partial(), "changes": self._changes.partial(), "clients": clients}

    def merge(self, partial: Mapping[str, Any]) -> None:
        """Fold both means. A relay's clients are clients, and it is none itself."""
        clients = partial["clients"]
        if not is_whole(clients, 0, 2**53):
            raise InvalidUpdate(f"clients is {clients!r}; expected how many there are")
        self._changes.check_partial(partial["changes"])
        self._mean.merge(partial["mean"])
        self._changes.merge(partial["changes"])
        self._clients += max(0, clients - 1)

    def finish(self, model: Model, *, number: int) -> Model:
        """Return the next model, and update the server's control variate."""
        # c + 1 / N * sum of the changes: the mean of the changes, times the share of the N clients that sent one. Late
        # updates may come from clients that are no longer connected, so N is at least their number.
        share = self._changes.count / max(self._clients, self._changes.count)
        for block in self._changes.blocks(self._control):
            block.value *= share
            block.value += block.model
        self._control = self._changes.finish()
        return self._mean.finish_towards(model, self._rate)

    def abandon(self) -> None:
        """Discard the updates."""
        super().abandon()
        self._changes.reset()
        self._clients = 0

    def reject(self) -> None:
        """Discard the updates, and reset the control variate."""
        self.abandon()
        self._control = zeros_like(self._control)

    def state(self) -> dict[str, Any]:
        """Return the server's control variate."""
        return {"control": self._control}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a control variate."""
        control = dict(state["control"])
        check(control, like=control)
        self._control = control


def _sum(partial: Mapping[str, Any], name: str) -> float:
    """Return a sum of a partial. Raises InvalidUpdate for what is none."""
    value = partial.get(name)
    if not (isinstance(value, float) and 0 <= value < math.inf):
        raise InvalidUpdate(f"{name} is {value!r}; expected a sum, as a finite float of 0 or more")
    return value


def _metric(update: Update, name: str, least: float) -> float:
    """Return a metric that the strategy needs. Raises InvalidUpdate if it is missing or out of range."""
    expected = f"a number of {least:g} or more from every client, and {_MAX_METRIC:g} at most"
    if name not in update.metrics:
        raise InvalidUpdate(f"its metrics have no {name!r}; expected {expected}")
    value = update.metrics[name]
    if not isinstance(value, float):
        raise InvalidUpdate(f"metrics[{name!r}] is an array or a Sum; expected {expected}")
    if not least <= value <= _MAX_METRIC:
        raise InvalidUpdate(f"metrics[{name!r}] is {value:g}; expected {expected}")
    return value
