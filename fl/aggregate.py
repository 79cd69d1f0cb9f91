"""Kernels that fold one update after the other into memory they own.

Owns what an update must look like (`check`) and the running mean of a round. Called by the server's thread,
one update at a time. Never keeps an update, never sees a peer, never starts a thread.

Everything is read in blocks that stay in the processor's cache, in C order whatever the layout; so the memory
is one accumulator and one block. float16, bfloat16, float8 and float32 are accumulated in float32, float64,
integers (those beyond 2**53 are rounded) and bool in float64, complex as it is.
"""

from __future__ import annotations

import contextlib
import functools
import math
import numbers
import reprlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from netq.errors import NetqError

if TYPE_CHECKING:
    import torch

Model: TypeAlias = "Mapping[str, NDArray[Any] | torch.Tensor]"

BLOCK = 64 * 1024  # elements; of 4 Ki to 128 Ki the fastest for float32, with 2 MiB of second-level cache a core
_WIDEST = 16  # bytes of an element: complex128
_TORCH_ONLY = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
_ACCUMULATORS: dict[str, np.dtype[Any]] = {
    **dict.fromkeys(("float16", "float32", *_TORCH_ONLY), np.dtype(np.float32)),
    **dict.fromkeys(("bool", "float64"), np.dtype(np.float64)),
    **{f"{sign}int{bits}": np.dtype(np.float64) for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{name: np.dtype(name) for name in ("complex64", "complex128")},
}


class InvalidUpdate(NetqError, ValueError):
    """An update does not fit the model. It was not folded; nothing has changed by it."""


def check(model: Model, like: Model) -> None:
    """Raise InvalidUpdate unless `model` has the keys, shapes and dtypes of `like`, and finite values only.

    A numpy array and a torch tensor of one shape and dtype are alike.
    """
    scratch = _Scratch()
    for name, source in _sources(model, _specs(like)):
        _check_finite(name, source, scratch)


class WeightedMean:
    """The mean of a round's updates by weight (FedAvg: McMahan et al., 2017), folded as they arrive.

    A running mean (West, 1979): equal updates give exactly themselves, and no sum overflows. The order of
    updates changes nothing but rounding.
    """

    def __init__(self, like: Model) -> None:
        self._specs = _specs(like)
        self._means = {name: np.empty(spec.size, spec.accumulator) for name, spec in self._specs.items()}
        self._scratch = _Scratch()
        self.reset()

    def reset(self) -> None:
        """Begin the next round, in the same memory."""
        self.count = 0
        self.weight = 0.0

    def fold(self, model: Model, weight: float) -> None:
        """Fold an update in. It is the caller's again when this returns.

        Raises InvalidUpdate, with the mean untouched, for a weight that is not finite and above 0, and for
        what `check` refuses.
        """
        value = _checked_weight(weight)
        total = self.weight + value
        if not math.isfinite(total):
            raise InvalidUpdate(f"the weight is {value}; with {self.weight} before it, that exceeds a float")
        sources = list(_sources(model, self._specs))
        for name, source in sources:
            _check_finite(name, source, self._scratch)
        share = value / total
        for name, source in sources:
            _fold(self._means[name], source, share, self._scratch)
        self.count += 1
        self.weight = total

    def finish(self) -> dict[str, Any]:
        """Return the mean in memory of its own: keys, shapes, dtypes and kinds are those of `like`.

        Integers are rounded to the nearest, a bool is what more than half of the weight says. Raises
        InvalidUpdate if nothing was folded.
        """
        if self.count == 0:
            raise InvalidUpdate("there is no mean: no update was folded")
        return {name: _restore(self._means[name], spec, self._scratch) for name, spec in self._specs.items()}


class _Spec(NamedTuple):
    """What a tensor must look like."""

    shape: tuple[int, ...]
    dtype: str
    device: Any  # None: numpy

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def accumulator(self) -> np.dtype[Any]:
        return _ACCUMULATORS[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


@dataclass(frozen=True)
class _Source:
    """The elements of an update's tensor. `bits` is its memory: the elements themselves where numpy knows them."""

    bits: NDArray[Any]
    spec: _Spec

    def blocks(self, scratch: _Scratch) -> Iterator[NDArray[Any]]:
        """The elements in C order, a block at a time; a block is valid until the next."""
        if self.bits.size == 0:
            return
        blocks: Any = np.nditer(self.bits, ["external_loop", "buffered"], ["readonly"], order="C", buffersize=BLOCK)
        for block in blocks:
            yield self._widen(block, scratch)

    def _widen(self, block: NDArray[Any], scratch: _Scratch) -> NDArray[Any]:
        if self.spec.dtype not in _TORCH_ONLY:
            return block
        wide = scratch.wide[: block.size]
        if self.spec.dtype == "bfloat16":  # the upper half of a float32
            np.left_shift(block, 16, out=wide.view(np.uint32), dtype=np.uint32)
        else:
            np.take(_float8(self.spec.dtype), block, out=wide, mode="clip")
        return wide


class _Scratch:
    """One block of each working memory."""

    def __init__(self) -> None:
        self.wide = np.empty(BLOCK, np.float32)
        self.flags = np.empty(BLOCK, np.bool_)
        self._bytes = np.empty(BLOCK * _WIDEST, np.uint8)

    def of(self, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
        return self._bytes[: size * dtype.itemsize].view(dtype)


def _specs(like: Model) -> dict[str, _Spec]:
    specs = {name: _spec(name, tensor) for name, tensor in like.items()}
    for name, spec in specs.items():
        if spec.dtype not in _ACCUMULATORS:
            raise InvalidUpdate(f"{name!r}: {spec.dtype} has no mean; expected one of {', '.join(_ACCUMULATORS)}")
    return specs


def _spec(name: str, tensor: Any) -> _Spec:
    if isinstance(tensor, (np.ndarray, np.generic)):  # arithmetic makes scalars of 0-d arrays
        dtype = tensor.dtype
        return _Spec(tensor.shape, dtype.name if dtype.isnative else dtype.str, None)
    if _is_torch(tensor):
        return _Spec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.device)
    raise InvalidUpdate(f"{name!r}: a {type(tensor).__name__}; expected a numpy array or a dense torch tensor")


def _is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return False
    return tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_nested or tensor.is_quantized)


def _sources(model: Model, specs: Mapping[str, _Spec]) -> Iterator[tuple[str, _Source]]:
    """The tensors of a model that fits the specs; their values are not looked at."""
    if not isinstance(model, Mapping):
        raise InvalidUpdate(f"an update is a {type(model).__name__}; expected a mapping of names to arrays")
    for name in specs:
        if name not in model:
            raise InvalidUpdate(f"{name!r} is missing; expected {specs[name]}")
    for name in model:
        if name not in specs:
            what = reprlib.repr(name) if isinstance(name, str) else f"a key of type {type(name).__name__}"
            raise InvalidUpdate(f"{what} is unexpected; expected the model's {len(specs)} names only")
    for name, expected in specs.items():
        tensor = model[name]
        spec = _spec(name, tensor)
        if spec[:2] != expected[:2]:
            raise InvalidUpdate(f"{name!r} is {spec}; expected {expected}")
        yield name, _Source(_bits(tensor), expected)


def _bits(tensor: Any) -> NDArray[Any]:
    """The memory of a tensor as an array of its shape and strides, uncopied if it lies on the CPU."""
    if isinstance(tensor, (np.ndarray, np.generic)):
        return np.asarray(tensor)
    torch = sys.modules["torch"]
    dense = tensor.detach().cpu().resolve_conj().resolve_neg()
    if str(dense.dtype).removeprefix("torch.") in _TORCH_ONLY:
        dense = dense.view(torch.uint16 if dense.itemsize == 2 else torch.uint8)
    array: NDArray[Any] = dense.numpy()
    return array


def _check_finite(name: str, source: _Source, scratch: _Scratch) -> None:
    if source.spec.dtype.startswith(("bool", "int", "uint")):
        return
    for block in source.blocks(scratch):
        if not np.isfinite(block, out=scratch.flags[: block.size]).all():
            raise InvalidUpdate(f"{name!r} holds NaN or infinity; expected finite values")


def _checked_weight(weight: Any) -> float:
    value = math.nan
    if isinstance(weight, numbers.Real):
        with contextlib.suppress(OverflowError):
            value = float(weight)
    if not 0 < value < math.inf:
        raise InvalidUpdate(
            f"the weight is {value} (of type {type(weight).__name__}); expected a finite number above 0"
        )
    return value


def _fold(mean: NDArray[Any], source: _Source, share: float, scratch: _Scratch) -> None:
    """mean += share * (source - mean), block by block. The first update has a share of 1."""
    start = 0
    for block in source.blocks(scratch):
        target = mean[start : start + block.size]
        start += block.size
        if share == 1:
            np.copyto(target, block)
        else:
            _move(target, block, share, scratch)


def _move(mean: NDArray[Any], block: NDArray[Any], share: float, scratch: _Scratch) -> None:
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


def _restore(mean: NDArray[Any], spec: _Spec, scratch: _Scratch) -> Any:
    """The mean as a new tensor of the spec."""
    if spec.device is None:
        return _narrow(mean, np.dtype(spec.dtype), scratch).reshape(spec.shape)
    torch = sys.modules["torch"]
    if spec.dtype in _TORCH_ONLY:
        tensor = torch.from_numpy(mean).to(getattr(torch, spec.dtype))
    else:
        tensor = torch.from_numpy(_narrow(mean, np.dtype(spec.dtype), scratch))
    return tensor.reshape(spec.shape).to(spec.device)


def _narrow(mean: NDArray[Any], dtype: np.dtype[Any], scratch: _Scratch) -> NDArray[Any]:
    if dtype.kind == "b":
        return mean > 0.5
    if dtype.kind in "iu":
        return _round(mean, dtype, scratch)
    narrow: NDArray[Any] = mean.astype(dtype)
    return narrow


def _round(mean: NDArray[Any], dtype: np.dtype[Any], scratch: _Scratch) -> NDArray[Any]:
    rounded = np.empty(mean.size, dtype)
    low, high = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    if int(high) > np.iinfo(dtype).max:  # 64 bits: the float next to it is out of range
        high = math.nextafter(high, 0)
    for start in range(0, mean.size, BLOCK):
        block = mean[start : start + BLOCK]
        whole = np.rint(block, out=scratch.of(mean.dtype, block.size))
        rounded[start : start + BLOCK] = np.clip(whole, low, high, out=whole)
    return rounded


@functools.cache
def _float8(dtype: str) -> NDArray[np.float32]:
    """The value of each of the 256 patterns."""
    torch = sys.modules["torch"]
    values: NDArray[np.float32] = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).float().numpy()
    return values
