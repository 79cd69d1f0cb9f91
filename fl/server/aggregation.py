"""Makes the next model of a round's updates: each tensor by its role (fl/tensors/roles.py).

The strategy gets the trained tensors, and others that it asks for (Strategy.roles). The mean of the rest is taken here
(fl/aggregation/statistics.py), and constants are compared. Called by fl/server/server.py, in
the server's thread.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from fl.aggregation.statistics import Statistics
from fl.compression.packed import Packed, Unpacked
from fl.errors import InvalidUpdate
from fl.messages import Update, with_fields
from fl.strategies.base import Strategy
from fl.tensors.blocks import Scratch, check_names, flat, is_finite, restore, source_of
from fl.tensors.model import check
from fl.tensors.roles import Roles, equal
from fl.tensors.spec import Model, plain, specs_of


class Aggregation:
    """The strategy, the statistics and the constants of one server. Calls `begin` of the strategy.

    model: the first one, without its local tensors.
    roles: of its tensors, and of the local ones.
    """

    def __init__(self, strategy: Strategy, model: Model, roles: Roles) -> None:
        self._strategy = strategy
        self._roles = roles
        self._trained = dict.fromkeys(name for name in model if self._is_for_strategy(name, model[name]))
        self._constants = [name for name in model if roles[name] == "constant"]
        self._units = [name for name in model if roles[name] == "unit"]
        others = model.keys() - self._trained.keys() - set(self._constants)
        self._statistics = Statistics([name for name in model if name in others])
        self._expected = specs_of({name: tensor for name, tensor in model.items() if roles[name] != "constant"})
        strategy.begin(self._part(model))

    def fold(self, model: Model, update: Update, client: uuid.UUID, staleness: int) -> None:
        """Fold an update, whose tensors may be packed.

        Raises InvalidUpdate, with nothing changed, and what `fold` of the strategy raises.
        """
        found = self._without_constants(model, update.model)
        start = self._part(model)
        trained = Unpacked({name: found[name] for name in start}, start, deltas=self._strategy.deltas)
        statistics = self._statistics.read(model, found)
        weight = update.num_examples * self._strategy.discount(staleness)
        self._strategy.fold(start, with_fields(update, model=trained), client=client, staleness=staleness)
        self._statistics.fold(statistics, weight)

    def finish(self, model: Model, number: int) -> dict[str, Any]:
        """Return the next model. Raises InvalidUpdate for a result that is no model, and what `finish` raises."""
        start = self._part(model)
        result = plain(self._strategy.finish(start, number=number))
        try:
            check(result, like=start)  # finite updates may still overflow
        except InvalidUpdate as error:
            self._strategy.reject()
            raise InvalidUpdate(f"what {type(self._strategy).__name__} came to is no model: {error}") from None
        found = {**result, **self._statistics.finish(model)}
        for name in self._units:
            found[name] = _of_length_1(name, found[name], model[name])
        return {name: found.get(name, tensor) for name, tensor in model.items()}

    def abandon(self) -> None:
        """Discard the updates of this round."""
        self._strategy.abandon()
        self._statistics.reset()

    def _is_for_strategy(self, name: str, tensor: Any) -> bool:
        """Return whether the strategy gets a tensor. None gets a statistic that is infinite before the first round."""
        role = self._roles[name]
        return role in self._strategy.roles and (role == "trained" or is_finite(source_of(name, tensor), Scratch()))

    def _part(self, model: Mapping[str, Any]) -> dict[str, Any]:
        return {name: model[name] for name in self._trained}

    def _without_constants(self, model: Model, update: Mapping[str, Any]) -> dict[str, Any]:
        """Return an update without its constants. Raises InvalidUpdate if it is no update of this model."""
        found = dict(update)
        for name in self._roles.keys() & found.keys():
            if self._roles[name] == "local":
                raise InvalidUpdate(f"{name!r} is local, and has come; expected an update without it")
            if self._roles[name] == "constant" and not _is(model[name], name, found.pop(name)):
                raise InvalidUpdate(f"{name!r} is constant, and has changed; expected the value that the client got")
        check_names(found, self._expected)
        return found


def _is(constant: Any, name: str, tensor: Any) -> bool:
    return not isinstance(tensor, Packed) and equal(name, tensor, constant)


def _of_length_1(name: str, mean: Any, before: Any) -> Any:
    """Return a mean of vectors as a vector of length 1. The mean of opposite vectors has no direction."""
    source, scratch = source_of(name, mean), Scratch()
    values = flat(source, scratch)
    length = np.linalg.norm(values)
    if not length > 0:
        return before
    return restore((values / length).astype(source.spec.accumulator), source.spec, scratch)
