"""Makes the next model of a round's updates: each tensor by its role (fl/tensors/roles.py).

The strategy gets the trained tensors, and others that it asks for (Strategy.roles). The mean of the rest is taken here
(fl/aggregation/statistics.py), and constants are compared. Called by fl/server/server.py, in
the server's thread.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from fl.aggregation.statistics import Statistics
from fl.compression.packed import Packed, unpacked
from fl.errors import InvalidUpdate
from fl.messages import Update, with_fields
from fl.privacy.privacy import Privacy
from fl.report import ClientFailure, FailureKind
from fl.strategies.base import Strategy
from fl.subtotal import Subtotal, arrays
from fl.tensors.blocks import Scratch, check_names, flat, is_finite, restore, source_of
from fl.tensors.model import check
from fl.tensors.roles import Roles, equal
from fl.tensors.spec import Model, plain, specs_of
from netq.text import describe

log = logging.getLogger("netq.fl")

SUM = uuid.UUID(int=0)  # the client of an update that is the mean of many


class Aggregation:
    """The strategy, the statistics and the constants of one server. Calls `begin` of the strategy.

    model:   the first one, without its local tensors.
    roles:   of its tensors, and of the local ones.
    privacy: clips the updates, and adds noise to their sum; the strategy gets their mean. None: it gets each of them.
    """

    def __init__(self, strategy: Strategy, model: Model, roles: Roles, privacy: Privacy | None = None) -> None:
        self._strategy = strategy
        self._privacy = privacy
        self._roles = roles
        self._trained = dict.fromkeys(name for name in model if self._is_for_strategy(name, model[name]))
        self._constants = [name for name in model if roles[name] == "constant"]
        self._units = [name for name in model if roles[name] == "unit"]
        others = model.keys() - self._trained.keys() - set(self._constants)
        self._statistics = Statistics([name for name in model if name in others])
        self._logged: set[type[Exception]] = set()  # errors of the strategy in this round, with a traceback in the log
        self._expected = specs_of({name: tensor for name, tensor in model.items() if roles[name] != "constant"})
        strategy.begin(self._part(model))

    def fold(self, model: Model, update: Update, client: uuid.UUID, staleness: int) -> None:
        """Fold an update, whose tensors may be packed.

        Raises InvalidUpdate, with nothing changed, and what `fold` of the strategy raises.
        """
        found = self._without_constants(model, update.model)
        start = self._part(model)
        trained = unpacked({name: found[name] for name in start}, start, deltas=self._strategy.deltas)
        statistics = self._statistics.read(model, found)
        weight = update.num_examples * self._strategy.discount(staleness)
        if self._privacy is not None:
            self._privacy.fold(start, trained)
        else:
            self._strategy.fold(start, with_fields(update, model=trained), client=client, staleness=staleness)
        self._statistics.fold(statistics, weight)

    def take(self, model: Model, content: Update | Subtotal, client: uuid.UUID, staleness: int) -> None:
        """Fold an update, or the sum of a relay. Raises what `fold` and `merge` do."""
        if isinstance(content, Subtotal):
            if not arrays(content.folded):
                raise InvalidUpdate(f"it has no sum of its {len(content.clients)} clients")
            self.merge(model, content.folded)
        else:
            self.fold(model, content, client, staleness)

    def fold_if_valid(
        self, model: Model, update: Update, client: uuid.UUID, staleness: int = 0
    ) -> ClientFailure | None:
        """Fold an update, or return why not. Raises OSError: the disk of the strategy is at fault, and no client."""
        try:
            self.fold(model, update, client, staleness)
        except OSError:
            raise
        except Exception as error:
            return self.failure_of(error)
        return None

    def failure_of(self, error: Exception) -> ClientFailure:
        """Return what a failed fold says of the client. An error that is no InvalidUpdate is a bug of the strategy."""
        if isinstance(error, InvalidUpdate):
            return ClientFailure(FailureKind.INVALID, str(error))
        if type(error) not in self._logged:
            self._logged.add(type(error))
            log.error("the strategy could not fold an update", exc_info=error)
        return ClientFailure(FailureKind.ERROR, f"the strategy could not fold it: {describe(error)}")

    @property
    def merges(self) -> bool:
        """Whether updates may be folded in several places, and their `partial`s merged."""
        return self._strategy.merges and self._privacy is None

    def partial(self) -> dict[str, Any]:
        """Return what was folded since the last `finish`, for `merge` of another one like this, and begin again."""
        return {"strategy": self._strategy.partial(), "statistics": self._statistics.partial()}

    def merge(self, model: Model, partial: Mapping[str, Any]) -> None:
        """Fold what `partial` of another one has returned, which had the same model. Raises InvalidUpdate."""
        try:
            self._statistics.check_partial(model, partial["statistics"])
            self._strategy.merge(partial["strategy"])
        except (KeyError, TypeError, AttributeError) as error:  # of a peer: it may be anything
            who = f"{type(self._strategy).__name__}: {describe(error)}"
            raise InvalidUpdate(f"it is no sum of {who}; expected what its `partial` returns") from None
        self._statistics.merge(model, partial["statistics"])

    def finish(self, model: Model, number: int) -> dict[str, Any]:
        """Return the next model. Raises InvalidUpdate for a result that is no model, and what `finish` raises."""
        self._logged.clear()
        start = self._part(model)
        if self._privacy is not None:
            self._strategy.fold(start, Update(self._privacy.mean(start), 1), client=SUM)
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
        self._logged.clear()
        self._strategy.abandon()
        self._statistics.reset()
        if self._privacy is not None:
            self._privacy.abandon()

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
