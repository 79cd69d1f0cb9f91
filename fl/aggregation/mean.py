"""The running mean of a round's updates. Each update is folded as it arrives, in memory that this module owns.

Called by the server's thread, one update at a time. Keeps no update, sees no peer, starts no thread (numpy's BLAS,
which checks the values, has its own). The memory is one accumulator and one block (fl/tensors/blocks.py). A result
keeps the accumulator's memory where the dtypes are equal, and the next accumulator takes the memory of an earlier
result that has no references left. So a round needs two models at most: the one that clients are sent, and the next.
"""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl.aggregation import integers
from fl.errors import InvalidUpdate
from fl.tensors.blocks import BLOCK, Scratch, Source, check_finite, check_names, restore, source_of, sources
from fl.tensors.dtypes import LARGEST
from fl.tensors.spec import Model, specs_of
from netq.protocol.memory import Memory
from netq.validate import is_whole


@dataclass(slots=True)
class Block:
    """Some elements of one tensor, in C order and in the precision of the computation."""

    name: str
    size: int  # of the whole tensor
    start: int
    stop: int
    value: NDArray[Any]  # the accumulator's memory; changes go into the result
    model: NDArray[Any]  # the same elements of the round's model; read only


class Accumulator:
    """Memory for one model in the precision of the computation: a flat array for each tensor.

    Of 64-bit integers the array has differences from a base, which is one of the updates (fl/aggregation/integers.py).
    """

    def __init__(self, like: Model) -> None:
        self.specs = specs_of(like)
        self.scratch = Scratch()
        self._memory = Memory(keep=2**62)  # bytes: keep all; it never holds more than one result
        self._values: dict[str, NDArray[Any]] = {}
        self._bases: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._values:
            spec = self.specs[name]
            taken = self._memory.take(spec.size * spec.accumulator.itemsize)
            self._values[name] = np.frombuffer(taken, spec.accumulator)
        return self._values[name]

    def base(self, name: str) -> NDArray[Any]:
        """Return the base of a tensor of 64-bit integers, flat. It is to be written before its differences."""
        if name not in self._bases:
            self._bases[name] = np.empty(self.specs[name].size, self.specs[name].dtype)
        return self._bases[name]

    def elements(self, name: str, source: Source, *, first: bool) -> Iterator[NDArray[Any]]:
        """Yield the elements of an update, block by block, as the array of this tensor has them.

        first: whether it is the first update of a round, which becomes the base.
        """
        start = 0
        for block in source.blocks(self.scratch):
            if source.spec.is_long:
                base = self.base(name)[start : start + block.size]
                if first:
                    base[:] = block
                start += block.size
                block = integers.difference(block, base)
            yield block

    def take(self) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """Return the arrays, and the bases of those that have differences. The memory is the caller's."""
        values, bases = {name: self[name] for name in self.specs}, {name: self._bases[name] for name in self._bases}
        self._values.clear()
        self._bases.clear()
        return values, bases

    def rebased(self, name: str, values: NDArray[Any], base: NDArray[Any] | None, *, first: bool) -> NDArray[Any]:
        """Return an array that `take` has returned, with its differences from the base of this accumulator."""
        if base is None:
            return values
        if first:
            self.base(name)[:] = base
            return values
        rebased: NDArray[Any] = integers.difference(base, self.base(name)) + values
        return rebased

    def checked_sources(self, model: Model) -> Iterator[tuple[str, Source]]:
        """Check the specs and values of a whole model, then return its tensors. Raises InvalidUpdate before the first.

        Each tensor is read twice, and a packed update decodes it twice. Keeping it would need the memory of a model.
        """
        found = list(sources(model, self.specs)) if type(model) is dict else None  # else it may be packed
        for name, source in found or sources(model, self.specs):
            check_finite(name, source, self.scratch)
        return iter(found or sources(model, self.specs))

    def blocks(self, model: Model) -> Iterator[Block]:
        """Yield the accumulator and `model` side by side, block by block, without integer and bool tensors."""
        for name, source in sources(model, self.specs):
            if source.spec.is_exact:
                continue
            values, start = self[name], 0
            for elements in source.blocks(self.scratch):
                stop, same = start + elements.size, elements.astype(values.dtype, copy=False)
                yield Block(name, len(values), start, stop, values[start:stop], same)
                start = stop

    def finish(self) -> dict[str, Any]:
        """Return the accumulator as a model with the keys, shapes, dtypes and kinds of `like`.

        Integers are rounded to the nearest; a bool is True if its value is above 0.5.
        """
        values = {name: self[name] for name in self.specs}
        self._values.clear()  # the result keeps this memory where its dtype is the same; the next round takes other
        for name in self._bases.keys() & values.keys():
            values[name] = integers.add(self._bases[name], values[name])
        return {name: restore(values[name], spec, self.scratch) for name, spec in self.specs.items()}


class WeightedMean:
    """The weighted mean of a round's updates (FedAvg: McMahan et al., 2017), folded as they arrive.

    It is a running mean (West, 1979): the mean of equal updates is exactly that update, and no sum overflows. The order
    of updates changes the rounding only.
    """

    def __init__(self, like: Model) -> None:
        self._accumulator = Accumulator(like)
        self.reset()

    def reset(self) -> None:
        """Begin the next round."""
        self.count = 0
        self.weight = 0.0

    def check(self, model: Model) -> None:
        """Raise InvalidUpdate for an update that `fold` would refuse."""
        self._accumulator.checked_sources(model)

    def fold(self, model: Model, weight: float) -> None:
        """Fold one update. Its arrays belong to the caller again when this returns.

        Raises InvalidUpdate, with the mean unchanged, for a weight that is not a finite number above 0, and for a model
        that `fl.tensors.model.check` refuses.
        """
        value = checked_weight(weight)
        total = self.weight + value
        if not math.isfinite(total):
            raise InvalidUpdate(f"the weight is {value}; with {self.weight} before it, that exceeds a float")
        for name, source in self._accumulator.checked_sources(model):
            elements = self._accumulator.elements(name, source, first=self.count == 0)
            _fold(self._accumulator[name], elements, value / total, self._accumulator.scratch)
        self.count += 1
        self.weight = total

    def partial(self) -> dict[str, Any]:
        """Return the mean of what was folded, for `merge` of another one like this, and begin the next round.

        Plain values and flat arrays in the precision of the computation. Empty if nothing was folded.
        """
        if self.count == 0:
            return {}
        values, bases = self._accumulator.take()
        partial = {"values": values, "bases": bases, "weight": self.weight, "count": self.count}
        self.reset()
        return partial

    def merge(self, partial: Mapping[str, Any]) -> None:
        """Fold what `partial` of another one has returned, as if its updates were folded here. May change its arrays.

        Raises InvalidUpdate, with the mean unchanged, for one of another model.
        """
        if not partial:
            return
        self.check_partial(partial)
        weight, values, bases = partial["weight"], partial["values"], partial["bases"]
        total = self.weight + weight
        if not math.isfinite(total):
            raise InvalidUpdate(f"the weight is {weight}; with {self.weight} before it, that exceeds a float")
        for name in self._accumulator.specs:
            other = self._accumulator.rebased(name, values[name], bases.get(name), first=self.count == 0)
            blocks = (other[start : start + BLOCK] for start in range(0, other.size, BLOCK))
            _fold(self._accumulator[name], blocks, weight / total, self._accumulator.scratch)
        self.count += partial["count"]
        self.weight = total

    def check_partial(self, partial: Mapping[str, Any]) -> None:
        """Raise InvalidUpdate for a partial that `merge` would refuse."""
        if not partial:
            return
        specs, scratch = self._accumulator.specs, self._accumulator.scratch
        values, bases = partial["values"], partial["bases"]
        checked_weight(partial["weight"])
        if not is_whole(partial["count"], 1, 2**53):
            raise InvalidUpdate(f"count is {partial['count']!r}; expected how many updates were folded")
        check_names(values, specs)
        check_names(bases, {name: spec for name, spec in specs.items() if spec.is_long})
        for name, spec in specs.items():
            _check_flat(name, values[name], spec.size, spec.accumulator)
            if spec.is_long:
                _check_flat(name, bases[name], spec.size, np.dtype(spec.dtype))
            check_finite(name, source_of(name, values[name]), scratch)
            largest = LARGEST.get(spec.dtype)
            if largest is not None and spec.size and max(-values[name].min(), values[name].max()) > largest:
                raise InvalidUpdate(f"{name!r} has a mean beyond {largest:g}, the largest {spec.dtype}")

    def blocks(self, model: Model) -> Iterator[Block]:
        """Yield the mean and the round's model side by side, block by block. Change the mean before `finish`."""
        return self._accumulator.blocks(model)

    def finish_towards(self, model: Model, factor: float) -> dict[str, Any]:
        """Return `model + factor * (mean - model)`, and begin the next round.

        Integers and bools are those of the mean, for any factor.
        """
        for block in self.blocks(model):
            np.subtract(block.value, block.model, out=block.value)
            np.multiply(block.value, factor, out=block.value)
            np.add(block.value, block.model, out=block.value)
        return self.finish()

    def finish(self) -> dict[str, Any]:
        """Return the mean with the keys, shapes, dtypes and kinds of `like`, and begin the next round.

        Integers are rounded to the nearest; a bool is True if more than half of the weight is. Raises InvalidUpdate if
        nothing was folded.
        """
        self.require()
        self.reset()
        return self._accumulator.finish()

    def require(self) -> None:
        """Raise InvalidUpdate if nothing was folded."""
        if self.count == 0:
            raise InvalidUpdate("there is no mean: no update was folded")


def _check_flat(name: str, array: Any, size: int, dtype: np.dtype[Any]) -> None:
    if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != ((size,), dtype):
        raise InvalidUpdate(f"{name!r}: a mean of another model; expected {dtype} of shape {(size,)}")


def checked_weight(weight: Any) -> float:
    """Return the weight; raises InvalidUpdate unless it is a finite number above 0."""
    value = math.nan
    if isinstance(weight, numbers.Real):
        with contextlib.suppress(OverflowError):
            value = float(weight)
    if not 0 < value < math.inf:
        raise InvalidUpdate(
            f"the weight is {value} (of type {type(weight).__name__}); expected a finite number above 0"
        )
    return value


def _fold(mean: NDArray[Any], blocks: Iterator[NDArray[Any]], share: float, scratch: Scratch) -> None:
    """Compute mean += share * (update - mean), block by block. The first update has a share of 1."""
    start = 0
    for block in blocks:
        target = mean[start : start + block.size]
        start += block.size
        if share == 1:
            np.copyto(target, block)
        else:
            _move(target, block, share, scratch)


def _move(mean: NDArray[Any], block: NDArray[Any], share: float, scratch: Scratch) -> None:
    # mean + share * (block - mean), not (1 - share) * mean + share * block: the latter rounds equal values
    change = scratch.of(mean.dtype, block.size)
    try:
        with np.errstate(over="raise"):
            np.subtract(block, mean, out=change, dtype=mean.dtype)
    except FloatingPointError:  # the difference of two finite values overflows: then equal values are rounded, too
        np.multiply(mean, 1 - share, out=mean)
        np.add(mean, block * share, out=mean)
        return
    np.multiply(change, share, out=change)
    np.add(mean, change, out=mean)
