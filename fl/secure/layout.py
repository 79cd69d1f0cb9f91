"""An update as whole numbers, whose sum is exact: what stands where in a vector (fl/secure/words.py). Pure.

What is summed of a tensor of floats is its change, since the range of that is small. Each element becomes

    round(clip(trained - start, ±range) / range * share * steps)    32 bits, `steps` on each side; rounded at random

where `share` is the part of the largest weight that the client has, and the sum of all clients' largest values fits
into 32 bits. So 10 clients have 27 bits for a change, more than a float32 has. A range is a multiple of the tensor's
largest value (fl/secure/terms.py).

Whole numbers and bools are summed exactly: 64 bits hold the change times the weight. Behind them stand the weight, how
many elements were clipped, the metrics that the server has named, and the checksum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl.aggregation import integers
from fl.errors import InvalidUpdate
from fl.secure.words import Words
from fl.tensors.blocks import Scratch, Source, pairs_of_blocks, restore, source_of, sources
from fl.tensors.roles import SENT, Roles, of_role
from fl.tensors.spec import Model, Spec, specs_of

LARGEST = 2**53  # of the sum of all weights
_METRIC = 2.0**20  # the largest value of a metric
_random = np.random.Generator(np.random.SFC64())
_SAFE = 1 - 2.0**-20  # a float32 times a float32 may be this much too large


class Summed(NamedTuple):
    """What a sum of vectors says.

    model:    the mean of the updates by weight.
    examples: the sum of the weights.
    clipped:  the share of the elements that were clipped, over all clients. None: it is not learnt.
    metrics:  the means by weight of those that any client has.
    within:   which part of the clients was within the clip of their norm, with noise. None: it is not learnt.
    """

    model: dict[str, Any]
    examples: int
    clipped: float | None
    metrics: dict[str, float]
    within: float | None = None


class Layout:
    """The form of the vectors of one round.

    specs:   of the tensors that are sent.
    ranges:  the largest change of an element of each tensor of floats.
    metrics: the names of those that are summed.
    clients: how many vectors are summed at most.
    most:    the largest weight of a client; 1: all have the same.
    """

    def __init__(
        self, specs: Mapping[str, Spec], ranges: Mapping[str, float], metrics: Sequence[str], clients: int, most: int
    ) -> None:
        self._floats = {name: spec for name, spec in specs.items() if not spec.is_exact}
        self._wholes = {name: spec for name, spec in specs.items() if spec.is_exact}
        self._ranges, self._metrics = ranges, metrics
        self._clients, self._most = clients, most
        self._steps = math.floor((2**31 - 1) // clients * _SAFE) - 1  # rounding may add 1
        self._fraction = 2.0 ** (42 - clients.bit_length())  # of a metric: values of 20 bits, and all clients
        self.elements = sum(spec.size for spec in specs.values())
        words = sum(spec.numbers for spec in self._floats.values())
        self.small = words + words % 2
        self.large = sum(spec.size for spec in self._wholes.values()) + 2 + 2 * len(metrics) + 1

    @property
    def nbytes(self) -> int:
        """Bytes of a vector."""
        return 4 * self.small + 8 * self.large

    def steps_of(self, weight: float) -> float:
        """Return how many steps the change of an element has, on each side of 0, at a client of this weight."""
        return self._steps * weight / self._most

    def encode(self, start: Model, trained: Model, num_examples: int, metrics: Mapping[str, Any]) -> Words:
        """Return an update as a vector. Raises InvalidUpdate for a model of another form, or that is not finite."""
        weight = min(num_examples, self._most)
        words = Words.zeros(self.small, self.large)
        found = dict(sources(trained, {**self._floats, **self._wholes}))
        clipped = place = 0
        for name in self._floats:
            pairs = pairs_of_blocks(found[name], source_of(name, start[name]))
            factor = self._steps * (weight / self._most) / self._ranges[name]
            for one, other in pairs:
                change = _real(one) - _real(other)
                clipped += _clip(name, change, self._ranges[name])
                change *= factor
                words.small[place : place + change.size] = rounded(change).astype(np.int32).view(np.uint32)
                place += change.size
        place, bound = 0, (2**63 - 1) // (self._clients * self._most)
        for name in self._wholes:
            whole, wide = _change(found[name], source_of(name, start[name]))
            # As whole numbers: `bound` as a float is larger. Where `wide` is, they have wrapped around.
            beyond = (np.abs(wide) >= 2.0**63) | (whole > bound) | (whole < -bound)
            clipped += int(np.count_nonzero(beyond))
            whole = np.where(beyond, np.where(wide > 0, bound, -bound), whole)
            words.large[place : place + whole.size] = (whole * weight).view(np.uint64)
            place += whole.size
        words.large[place : place + 2] = weight, clipped
        for at, name in enumerate(self._metrics):
            value = metrics.get(name)
            if isinstance(value, float) and math.isfinite(value):
                share = min(max(value, -_METRIC), _METRIC) * (weight / self._most)
                words.large[place + 2 + 2 * at : place + 4 + 2 * at] = round(share * self._fraction) % 2**64, weight
        words.large[-1] = words.checksum()
        return words

    def decode(self, start: Model, words: Words) -> Summed:
        """Return what a sum of vectors says. Raises InvalidUpdate if it is none: a client has sent something else."""
        whole = words.large.view(np.int64)
        place = sum(spec.size for spec in self._wholes.values())
        weight, clipped = checked_sum(words, place), int(whole[place + 1])
        model, scratch = dict[str, Any](), Scratch()
        place_small = place_large = 0
        for name, spec in {**self._floats, **self._wholes}.items():
            source = source_of(name, start[name])
            if spec.is_exact:
                mean = whole[place_large : place_large + spec.size] / weight
                model[name] = _moved(source, mean, scratch)
                place_large += spec.size
            else:
                size = spec.numbers
                change = words.small[place_small : place_small + size].view(np.int32)
                factor = self._ranges[name] / self._steps * (self._most / weight)
                model[name] = restore(_added(source, change, factor), spec, scratch)
                place_small += size
        shown = dict[str, float]()
        for at, name in enumerate(self._metrics):
            value, of = (int(each) for each in whole[place + 2 + 2 * at : place + 4 + 2 * at])
            if of > 0:
                shown[name] = value / self._fraction * (self._most / of)
        return Summed(model, weight, clipped / max(1, self.elements * self._clients), shown)


def vector_bytes(model: Model, roles: Roles, metrics: Sequence[str]) -> int:
    """Return how many bytes a vector of this model has at most, with noise in the sum or without."""
    return Layout(specs_of(of_role(model, roles, *SENT)), {}, metrics, 1, 1).nbytes


def checked_sum(words: Words, place: int) -> int:
    """Return the sum of the clients' weights, at a place of the large words. Raises InvalidUpdate for no valid sum."""
    weight = int(words.large.view(np.int64)[place])
    is_sum = (words.checksum() - int(words.large[-1])) % 2**32 == int(words.large[-1]) % 2**32
    if not (is_sum and 0 < weight <= LARGEST):
        raise InvalidUpdate(
            "the masked vectors have no valid sum: a client has sent other numbers than it should, or masks that "
            "do not fit the others'; nothing says which client"
        )
    return weight


def _clip(name: str, change: NDArray[Any], most: float) -> int:
    """Clip changes to ±most in place. Return how many were larger. Raises InvalidUpdate for NaN and infinity."""
    if not np.isfinite(change).all():
        raise InvalidUpdate(f"{name!r} holds NaN or infinity; expected finite values")
    larger = int(np.count_nonzero(np.abs(change) > most))
    if larger:
        np.clip(change, -most, most, out=change)
    return larger


def _real(block: NDArray[Any]) -> NDArray[Any]:
    """Return elements as floats of 32 or 64 bits, complex ones as two."""
    wide = block.astype(np.float32) if block.dtype == np.float16 else block
    return wide.view(wide.real.dtype)


def _change(trained: Source, start: Source) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the differences of whole numbers or bools, modulo 2**64, and as floats: which of them are too large."""
    after, before = (np.ascontiguousarray(each.bits).reshape(-1) for each in (trained, start))
    kind = np.uint64 if after.dtype.kind == "u" else np.int64
    after, before = after.astype(kind), before.astype(kind)
    return (after - before).view(np.int64), integers.difference(after, before)


def rounded(values: NDArray[Any]) -> NDArray[Any]:
    """Round in place to one of the next whole numbers, at random, so that the mean of many is right.

    Small changes of all clients would else round to 0 alike.
    """
    values += _random.random(values.size, values.dtype.type)
    np.floor(values, out=values)
    return values


def _added(start: Source, change: NDArray[np.int32], factor: float) -> NDArray[Any]:
    """Return the elements of a tensor, with changes added, in the precision of the computation."""
    values = np.empty(start.spec.size, start.spec.accumulator)
    flat, place, scratch = values.view(values.real.dtype), 0, Scratch()
    for block in start.blocks(scratch):
        same = _real(block)
        flat[place : place + same.size] = same + change[place : place + same.size] * factor
        place += same.size
    return values


def _moved(start: Source, change: NDArray[np.float64], scratch: Scratch) -> Any:
    """Return whole numbers or bools with mean changes added, rounded. A bool is True if more than half are."""
    before = np.ascontiguousarray(start.bits).reshape(-1)
    if start.spec.is_long:
        return restore(integers.add(before, change), start.spec, scratch)
    return restore(before.astype(np.float64) + change, start.spec, scratch)
