"""The changes of one round: each clipped as a whole, and as whole numbers, to whose sum noise is added. Pure.

A change is all elements of an update less those of the round's model. It becomes whole numbers, since the sum of floats
says more than their values: its last bits depend on the order, and on each of them. With d elements:

    round(change · scale / max(norm, clip))    scale = steps - √d / 2: rounding lengthens a change by √d / 2 at most

So no change is longer than `steps`, and rounding is a thousandth of it. If the clip follows the norms, one more number
says whether the change was within the clip. The same noise covers it: half as much as it counts is what the change has
less (Andrew et al., 2021, "Differentially private learning with adaptive clipping", theorem 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl.checks import expect
from fl.errors import InvalidUpdate
from fl.tensors.blocks import Scratch, pairs_of_blocks, restore, source_of, sources
from fl.tensors.spec import Model, Spec
from netq.validate import is_number

CLIPS = (1e-100, 1e100)  # the squares of smaller changes are 0 as floats: such a change would have no norm
_FINE = 2**9  # steps, in multiples of the square root of the number of elements: rounding is 2**-10 of the clip
_COARSE = 2  # the same, at least: it is a quarter
_MOST = 2**31 - 1  # what a sum may come to
_TAILS = 9  # standard deviations of the noise that are within it
_COUNTED = 1 / 20  # the standard deviation of the noise of the clients within the clip, as a part of all


@dataclass(frozen=True)
class Clipping:
    """How the changes of a round are clipped, and the noise of their sum. Raises InvalidUpdate.

    clip:       the largest norm of a change.
    multiplier: the standard deviation of the noise, in multiples of what one client adds at most.
    follows:    whether the clip follows the norms.
    """

    clip: float
    multiplier: float
    follows: bool

    def __post_init__(self) -> None:
        expect(is_number(self.clip, *CLIPS), "clip", self.clip, "a number from {:g} to {:g}".format(*CLIPS))
        expect(is_number(self.multiplier, 1e-6, 1e9), "multiplier", self.multiplier, "a number from 1e-6 to 1e9")
        expect(type(self.follows) is bool, "follows", self.follows, "True or False")


class Bounded:
    """The form of the changes of one round.

    specs:   of the tensors, all of floats.
    clients: by how many the sum is divided, which is so many changes at most.
    spread:  by how much the noise may exceed that of the multiplier, if all clients add theirs.

    size:      how many numbers a change has.
    deviation: the standard deviation of the noise of the sum, in their unit.
    """

    def __init__(self, specs: Mapping[str, Spec], clipping: Clipping, clients: float, spread: float = 1.0) -> None:
        self._specs = specs
        self._clip = clipping.clip
        self._clients = clients
        elements = sum(spec.numbers for spec in specs.values())
        multiplier = clipping.multiplier
        counted = max(clients * _COUNTED, multiplier)  # the noise of the number of clients within the clip
        if clipping.follows:
            multiplier = (multiplier**-2 - (2 * counted) ** -2) ** -0.5
        root = math.sqrt(elements)
        steps = math.floor(min(_FINE * root, _MOST / (clients + _TAILS * multiplier * spread)))
        if steps < _COARSE * root:
            raise InvalidUpdate(
                f"{elements} elements and {clients} clients are too many for a noise multiplier of {multiplier:.3g}: "
                "their sum would have too few steps"
            )
        self._scale = steps - root / 2
        self._unit = clipping.clip / self._scale if elements else 0.0  # of a whole number
        self.deviation = multiplier * steps
        self._within = math.floor(self.deviation / (2 * counted)) if clipping.follows else 0
        self.size = elements + clipping.follows

    def whole(self, start: Model, trained: Model) -> Iterator[NDArray[np.float64]]:
        """Return a change as whole numbers, block by block. Raises InvalidUpdate for one that is not finite, at once.

        start, trained: tensors of the specs; others are left alone.
        """
        squares = 0.0
        for change in self._changes(start, trained):
            if not np.isfinite(change).all():
                raise InvalidUpdate("the change of the model holds NaN or infinity; expected finite values")
            squares += float(np.dot(change, change))
        norm = math.sqrt(squares)
        return self._whole(start, trained, norm)

    def _whole(self, start: Model, trained: Model, norm: float) -> Iterator[NDArray[np.float64]]:
        factor = self._scale / max(norm, self._clip)
        for change in self._changes(start, trained):
            change *= factor
            yield np.rint(change, out=change)
        if self._within:
            yield np.array([self._within if norm <= self._clip else -self._within], np.float64)

    def _changes(self, start: Model, trained: Model) -> Iterator[NDArray[np.float64]]:
        found = dict(sources({name: trained[name] for name in self._specs if name in trained}, self._specs))
        for name in self._specs:
            for one, other in pairs_of_blocks(found[name], source_of(name, start[name])):
                yield _real(one) - _real(other)

    def moved(self, start: Model, total: NDArray[Any]) -> dict[str, Any]:
        """Return a model, moved by a sum of changes divided by the number of clients."""
        scratch, factor, place = Scratch(), self._unit / self._clients, 0
        model = dict[str, Any]()
        for name, spec in self._specs.items():
            values = np.empty(spec.size, spec.accumulator)
            flat, at = values.view(values.real.dtype), 0
            for block in source_of(name, start[name]).blocks(scratch):
                before = _real(block)
                flat[at : at + before.size] = before + total[place : place + before.size] * factor
                at, place = at + before.size, place + before.size
            model[name] = restore(values, spec, scratch)
        return model

    def within(self, total: NDArray[Any]) -> float | None:
        """Return which part of the clients was within the clip, with noise. None if it is not counted."""
        return float(total[self.size - 1]) / (2 * self._within * self._clients) + 0.5 if self._within else None


def _real(block: NDArray[Any]) -> NDArray[np.float64]:
    """Return elements in float64, complex ones as two."""
    wide = np.ascontiguousarray(block).view(block.real.dtype) if block.dtype.kind == "c" else block
    return wide.astype(np.float64)
