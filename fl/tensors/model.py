"""Whole models: checked against another one, copied, subtracted, measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fl.tensors.blocks import Scratch, _bits, check_finite, pairs_of_blocks, sources
from fl.tensors.spec import Model, Spec, _is_torch, _spec, specs_of

if TYPE_CHECKING:
    pass


DIFFERENCES = ("float16", "float32", "float64")


def check(model: Model, like: Model) -> None:
    """Raise InvalidUpdate unless `model` has the keys, shapes and dtypes of `like`, and finite values only.

    A numpy array and a torch tensor of one shape and dtype are alike.
    """
    check_specs(model, specs_of(like))


def check_specs(model: Model, specs: Mapping[str, Spec]) -> None:
    """Do the same as `check`, where no model of the kind is there any more."""
    scratch = Scratch()
    for name, source in sources(model, specs):
        check_finite(name, source, scratch)


def copied(model: Model) -> dict[str, Any]:
    """Return a copy in memory of its own: to remember what the round began with, where training changes that."""
    return {name: _copied(tensor) for name, tensor in model.items()}


def _copied(tensor: Any) -> Any:
    return tensor.detach().clone() if hasattr(tensor, "detach") else tensor.copy()


def is_difference(name: str, tensor: Any) -> bool:
    """Return whether a tensor travels as a difference where models do. Those of other dtypes travel as they are."""
    return _spec(name, tensor).dtype in DIFFERENCES


def difference(model: Model, start: Model) -> dict[str, Any]:
    """Return `model - start`, where tensors travel so, in the memory of `start`; the others as they are.

    What is not like the other model's is left as it is too: whoever gets it refuses it.
    """
    return {name: _difference(name, tensor, start.get(name)) for name, tensor in model.items()}


def _difference(name: str, tensor: Any, start: Any) -> Any:
    if start is None or _spec(name, tensor)[:2] != _spec(name, start)[:2] or not is_difference(name, tensor):
        return tensor
    if _is_torch(tensor) and _is_torch(start):
        return start.sub_(tensor.detach()).neg_()
    values = _bits(start)  # a tensor's own memory, where it lies on the CPU
    values = values if values.flags.writeable else values.copy()  # a numpy scalar
    return np.subtract(_bits(tensor), values, out=values)


def squared_distance(left: Model, right: Model) -> float:
    """Return the square of the Euclidean distance of two models that are alike, without whole numbers and bools."""
    specs, total = specs_of(left), 0.0
    for (_, one), (_, other) in zip(sources(left, specs), sources(right, specs), strict=True):
        if not one.spec.is_exact:
            for a, b in pairs_of_blocks(one, other):
                change = np.subtract(a, b, dtype=one.spec.accumulator)
                total += float(np.vdot(change, change).real)
    return total
