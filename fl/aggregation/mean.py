"""Kernels that fold one update after the other into memory they own.

Called by the server's thread, one update at a time. Never keeps an update, never sees a peer, starts no thread (but
numpy's BLAS, which looks at the values, has some of its own). The memory is one accumulator and one block
(fl/tensors/model.py). A result is the accumulator's own memory where the dtypes are the same; the next round's
accumulator is the memory of an earlier result, as soon as nobody has that any more. So a round costs no more than two
models: the one that clients are sent, and the next.
"""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl.errors import InvalidUpdate
from fl.tensors.blocks import Scratch, Source, check_finite, restore, sources
from fl.tensors.spec import Model, specs_of
from netq.protocol.memory import Memory


@dataclass(slots=True)
class Block:
    """Some elements of one tensor, in C order, in the precision that is computed with."""

    name: str
    size: int  # of the whole tensor
    start: int
    stop: int
    value: NDArray[Any]  # the accumulator's memory: what is written here is in the result
    model: NDArray[Any]  # the same elements of the round's model; not to be written


class Accumulator:
    """Memory for one model, in the precision that is computed with: a flat array for each tensor."""

    def __init__(self, like: Model) -> None:
        self.specs = specs_of(like)
        self.scratch = Scratch()
        self._memory = Memory(keep=2**62)  # never more than what one result had
        self._values: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._values:
            spec = self.specs[name]
            taken = self._memory.take(spec.size * spec.accumulator.itemsize)
            self._values[name] = np.frombuffer(taken, spec.accumulator)
        return self._values[name]

    def checked(self, model: Model) -> Iterator[tuple[str, Source]]:
        """Return the tensors of a model that is alike and finite, one after the other; raises InvalidUpdate at once.

        They are asked for twice: a packed update makes each when it is asked for, and keeps none.
        """
        for name, source in sources(model, self.specs):
            check_finite(name, source, self.scratch)
        return sources(model, self.specs)

    def blocks(self, model: Model) -> Iterator[Block]:
        """Yield what is here beside `model`, block by block: of the tensors that are not of whole numbers or bools."""
        for name, source in sources(model, self.specs):
            if source.spec.is_exact:
                continue
            values, start = self[name], 0
            for elements in source.blocks(self.scratch):
                stop, same = start + elements.size, elements.astype(values.dtype, copy=False)
                yield Block(name, len(values), start, stop, values[start:stop], same)
                start = stop

    def finish(self) -> dict[str, Any]:
        """Return what is here as a model: keys, shapes, dtypes and kinds are those of `like`.

        Whole numbers are rounded to the nearest, a bool is whether more than 0.5 is here.
        """
        values = [self[name] for name in self.specs]
        self._values.clear()
        pairs = zip(values, self.specs.items(), strict=True)
        return {name: restore(value, spec, self.scratch) for value, (name, spec) in pairs}


class WeightedMean:
    """The mean of a round's updates by weight (FedAvg: McMahan et al., 2017), folded as they arrive.

    A running mean (West, 1979): equal updates give exactly themselves, and no sum overflows. The order of
    updates changes nothing but rounding.
    """

    def __init__(self, like: Model) -> None:
        self._sum = Accumulator(like)
        self.reset()

    def reset(self) -> None:
        """Begin the next round."""
        self.count = 0
        self.weight = 0.0

    def fold(self, model: Model, weight: float) -> None:
        """Fold an update in. It is the caller's again when this returns.

        Raises InvalidUpdate, with the mean untouched, for a weight that is not finite and above 0, and for
        what `check` refuses.
        """
        value = checked_weight(weight)
        total = self.weight + value
        if not math.isfinite(total):
            raise InvalidUpdate(f"the weight is {value}; with {self.weight} before it, that exceeds a float")
        for name, source in self._sum.checked(model):
            _fold(self._sum[name], source, value / total, self._sum.scratch)
        self.count += 1
        self.weight = total

    def blocks(self, model: Model) -> Iterator[Block]:
        """Yield the mean beside the round's model, block by block, to be changed before `finish`."""
        return self._sum.blocks(model)

    def finish_towards(self, model: Model, factor: float) -> dict[str, Any]:
        """Return `model` moved towards the mean: by a factor of 1 it is the mean. The next round begins.

        Whole numbers and bools are those of the mean.
        """
        for block in self.blocks(model):
            np.subtract(block.value, block.model, out=block.value)
            np.multiply(block.value, factor, out=block.value)
            np.add(block.value, block.model, out=block.value)
        return self.finish()

    def finish(self) -> dict[str, Any]:
        """Return the mean: keys, shapes, dtypes and kinds are those of `like`. The next round begins.

        Integers are rounded to the nearest, a bool is what more than half of the weight says. Raises
        InvalidUpdate if nothing was folded.
        """
        self.require()
        self.reset()
        return self._sum.finish()

    def require(self) -> None:
        """Raise InvalidUpdate if nothing was folded."""
        if self.count == 0:
            raise InvalidUpdate("there is no mean: no update was folded")


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


def _fold(mean: NDArray[Any], source: Source, share: float, scratch: Scratch) -> None:
    """mean += share * (source - mean), block by block. The first update has a share of 1."""
    start = 0
    for block in source.blocks(scratch):
        target = mean[start : start + block.size]
        start += block.size
        if share == 1:
            np.copyto(target, block)
        else:
            _move(target, block, share, scratch)


def _move(mean: NDArray[Any], block: NDArray[Any], share: float, scratch: Scratch) -> None:
    change = scratch.of(mean.dtype, block.size)
    try:
        with np.errstate(over="raise"):
            np.subtract(block, mean, out=change, dtype=mean.dtype)
    except FloatingPointError:  # they are further apart than a float goes
        _move_far(mean, block, share)
        return
    np.multiply(change, share, out=change)
    np.add(mean, change, out=mean)


def _move_far(mean: NDArray[Any], block: NDArray[Any], share: float) -> None:
    """The same without the difference; equal values may come out rounded."""
    np.multiply(mean, 1 - share, out=mean)
    np.add(mean, block * share, out=mean)
