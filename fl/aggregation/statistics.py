"""The mean of a model's statistics, which no strategy may step: BatchNorm's, observed ranges, counters.

Kept beside a strategy by fl/server/aggregation.py. A statistic may be infinite where the round's model is, as a range
that has not been observed yet: such an element is left out of the mean, and stays infinite if it is in all updates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl.aggregation.mean import WeightedMean
from fl.errors import InvalidUpdate
from fl.tensors.blocks import Scratch, Source, flat, is_finite, restore, source_of, sources
from fl.tensors.spec import Model, specs_of

_LEAST = 1e-18  # the share of the weight of one client: numbers of examples are whole, and 2**53 at most


class Statistics:
    """The mean by weight of some tensors of a round's updates, folded as they arrive."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._scratch = Scratch()
        self._mean: WeightedMean | None = None  # of this round; None before its first update
        self._open: dict[str, Source] = {}  # tensors of the round's model that are infinite somewhere

    def read(self, model: Model, update: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the statistics of an update for `fold`. Raises InvalidUpdate if they do not fit `model`."""
        if not self._names:
            return {}
        mean = self._mean = self._mean or self._begin(model)
        found = {name: update[name] for name in self._names if name in update}
        values: dict[str, Any] = {}
        for name, source in sources(found, specs_of({name: model[name] for name in self._names})):
            values |= self._split(name, source) if name in self._open else {name: found[name]}
        mean.check(values)
        return values

    def fold(self, values: Mapping[str, Any], weight: float) -> None:
        """Fold what `read` has returned."""
        if weight > 0 and self._mean is not None:
            self._mean.fold(values, weight)

    def partial(self) -> dict[str, Any]:
        """Return the means of what was folded, for `merge` of another one, and begin the next round."""
        partial = {} if self._mean is None else self._mean.partial()
        self.reset()
        return partial

    def merge(self, model: Model, partial: Mapping[str, Any]) -> None:
        """Fold what `partial` of another one has returned. Raises InvalidUpdate if it is of another model."""
        if partial:
            self._mean = self._mean or self._begin(model)
            self._mean.merge(partial)

    def check_partial(self, model: Model, partial: Mapping[str, Any]) -> None:
        """Raise InvalidUpdate for a partial that `merge` would refuse."""
        if partial:
            self._mean = self._mean or self._begin(model)
            self._mean.check_partial(partial)
            for name in self._open:
                share = partial["values"][_share(name)]
                if not ((share == 0) | ((share >= _LEAST) & (share <= 1))).all():
                    raise InvalidUpdate(f"{name!r} has shares of the weight that are none; expected 0 to 1")

    def finish(self, model: Model) -> dict[str, Any]:
        """Return the means, and begin the next round. Without an update they are the values of the model."""
        if self._mean is None or not self._mean.count:
            return {name: model[name] for name in self._names}
        means = self._mean.finish()
        result = {name: means[name] for name in self._names}
        for name, source in self._open.items():
            share, before = means[_share(name)], flat(source, self._scratch)
            known = np.divide(means[name], share, out=before, where=share > 0)
            with np.errstate(over="ignore"):
                known = known.astype(source.spec.accumulator)
            if not np.isfinite(known[share > 0]).all():
                raise InvalidUpdate(f"the mean of {name!r} is infinite where clients have seen values")
            result[name] = restore(known, source.spec, self._scratch)
        self.reset()
        return result

    def reset(self) -> None:
        """Discard the updates of this round."""
        self._mean = None
        self._open.clear()

    def _begin(self, model: Model) -> WeightedMean:
        like: dict[str, Any] = {}
        for name in self._names:
            source = source_of(name, model[name])
            if is_finite(source, self._scratch):
                like[name] = model[name]
            else:
                self._open[name] = source
                like |= {name: flat(source, self._scratch), _share(name): np.zeros(source.spec.size)}
        return WeightedMean(like)

    def _split(self, name: str, source: Source) -> dict[str, NDArray[Any]]:
        """Return the finite elements of a statistic, 0 in place of the others, and which elements are finite."""
        values, model = flat(source, self._scratch), flat(self._open[name], self._scratch)
        is_known = np.isfinite(values)
        if not (is_known | (values == model)).all():
            raise InvalidUpdate(f"{name!r} holds NaN, or infinity where the model has none; expected finite values")
        return {name: np.where(is_known, values, 0.0), _share(name): is_known.astype(np.float64)}


def _share(name: str) -> str:
    """Return the key of the share of the weight that has an element. No tensor has such a name."""
    return f"{name}\0share"
