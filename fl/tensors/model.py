"""Operations on whole models: compare with another model, copy, subtract, measure the distance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fl.tensors.blocks import Scratch, bits_of, check_finite, pairs_of_blocks, sources
from fl.tensors.dtypes import DELTA_DTYPES
from fl.tensors.spec import Model, Spec, is_torch, spec_of, specs_of


def check(model: Model, like: Model) -> None:
    """Raise InvalidUpdate unless `model` has the keys, shapes and dtypes of `like`, and finite values only.

    A numpy array and a torch tensor of one shape and dtype are alike.
    """
    check_specs(model, specs_of(like))


def check_specs(model: Model, specs: Mapping[str, Spec]) -> None:
    """Check a model as `check` does, against the specs of a model instead of the model itself."""
    scratch = Scratch()
    for name, source in sources(model, specs):
        check_finite(name, source, scratch)


def copied(model: Model) -> dict[str, Any]:
    """Return a copy in new memory: training changes the model of the round in place, and the start may be needed."""
    return {name: _copied(tensor) for name, tensor in model.items()}


def separate(model: Model) -> dict[str, Any]:
    """Return a model whose tensors share no memory: one that begins where an earlier one does (tied weights) is copied.

    A model of tied weights would arrive tied, and a client that adds to each tensor in place would add twice.
    """
    seen: set[tuple[str, int]] = set()
    separated = {}
    for name, tensor in model.items():
        place = place_of(tensor)
        separated[name] = _copied(tensor) if place in seen else tensor
        seen.add(place)
    return separated


def place_of(tensor: Any) -> tuple[str, int]:
    """Return the device of a tensor, and where its memory begins."""
    return (str(tensor.device), tensor.data_ptr()) if is_torch(tensor) else ("cpu", np.asarray(tensor).ctypes.data)


def _copied(tensor: Any) -> Any:
    return tensor.detach().clone() if hasattr(tensor, "detach") else tensor.copy()


def is_difference(name: str, tensor: Any) -> bool:
    """Return whether this tensor of an update travels as a difference. Tensors of other dtypes travel as they are."""
    return spec_of(name, tensor).dtype in DELTA_DTYPES


def difference(model: Model, start: Model) -> dict[str, Any]:
    """Return `model - start` for the tensors that travel as differences, and the others unchanged.

    The differences overwrite the memory of `start`. A tensor that has no counterpart of its shape and dtype in `start`
    is also returned unchanged: the server refuses it, with a better error message than a subtraction here.
    """
    return {name: _difference(name, tensor, start.get(name)) for name, tensor in model.items()}


def _difference(name: str, tensor: Any, start: Any) -> Any:
    if start is None or spec_of(name, tensor)[:2] != spec_of(name, start)[:2] or not is_difference(name, tensor):
        return tensor
    if is_torch(tensor) and is_torch(start):
        return start.sub_(tensor.detach()).neg_()
    values = bits_of(start)  # shares memory with a tensor on the CPU
    values = values if values.flags.writeable else values.copy()  # a numpy scalar is read-only
    return np.subtract(bits_of(tensor), values, out=values)


def squared_distance(left: Model, right: Model) -> float:
    """Return the squared Euclidean distance of two models of equal specs. Integers and bools do not count."""
    specs, total = specs_of(left), 0.0
    for (_, one), (_, other) in zip(sources(left, specs), sources(right, specs), strict=True):
        if not one.spec.is_exact:
            for a, b in pairs_of_blocks(one, other):
                change = np.subtract(a, b, dtype=one.spec.accumulator)
                total += float(np.vdot(change, change).real)
    return total
