"""The elements of a model's tensors, read block by block.

Blocks stay in the processor's cache and come in C order, whatever the layout. float16, bfloat16, float8 and float32 are
computed with as float32; float64, integers (those beyond 2**53 are rounded) and bool as float64; complex as it is.
"""

from __future__ import annotations

import functools
import math
import reprlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl.errors import InvalidUpdate
from fl.tensors.spec import _TORCH_ONLY, Model, Spec, _spec

if TYPE_CHECKING:
    pass

BLOCK = 64 * 1024  # elements; of 4 Ki to 128 Ki the fastest for float32, with 2 MiB of second-level cache a core

_WIDEST = 16  # bytes of an element: complex128

_PAGE = 4096  # bytes; models begin where one does, or just behind. To write at the same place of a page as is read next

_OF_BLAS = (np.dtype(np.float32), np.dtype(np.float64))


@dataclass(frozen=True)
class Source:
    """The elements of an update's tensor. `bits` is its memory: the elements themselves where numpy knows them."""

    bits: NDArray[Any]
    spec: Spec

    def blocks(self, scratch: Scratch) -> Iterator[NDArray[Any]]:
        """The elements in C order, a block at a time; a block is valid until the next."""
        if self.bits.size == 0:
            return
        blocks: Any = np.nditer(self.bits, ["external_loop", "buffered"], ["readonly"], order="C", buffersize=BLOCK)
        for block in blocks:
            yield self._widen(block, scratch)

    def _widen(self, block: NDArray[Any], scratch: Scratch) -> NDArray[Any]:
        if self.spec.dtype not in _TORCH_ONLY:
            return block
        wide = scratch.wide[: block.size]
        if self.spec.dtype == "bfloat16":  # the upper half of a float32
            np.left_shift(block, 16, out=wide.view(np.uint32), dtype=np.uint32)
        else:
            np.take(_float8(self.spec.dtype), block, out=wide, mode="clip")
        return wide


def pairs_of_blocks(one: Source, other: Source) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield the elements of two tensors of one shape side by side, in C order; a pair is valid until the next."""
    if one.bits.size == 0:
        return
    scratch = Scratch(), Scratch()
    flags: Any = ["external_loop", "buffered"]
    blocks: Any = np.nditer([one.bits, other.bits], flags, [["readonly"]] * 2, order="C", buffersize=BLOCK)
    for a, b in blocks:
        yield one._widen(a, scratch[0]), other._widen(b, scratch[1])


class Scratch:
    """One block of each working memory."""

    def __init__(self) -> None:
        self.wide = np.empty(BLOCK, np.float32)
        self.flags = np.empty(BLOCK, np.bool_)
        whole = np.empty(BLOCK * _WIDEST + _PAGE, np.uint8)
        start = (_PAGE // 4 - whole.ctypes.data) % _PAGE
        self._bytes = whole[start : start + BLOCK * _WIDEST]

    def of(self, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
        """Return memory for `size` elements, one block's at most; each call returns the same."""
        return self._bytes[: size * dtype.itemsize].view(dtype)


def sources(model: Model, specs: Mapping[str, Spec]) -> Iterator[tuple[str, Source]]:
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
        yield name, Source(_bits(tensor), expected)


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


def check_finite(name: str, source: Source, scratch: Scratch) -> None:
    """Raise InvalidUpdate for NaN or infinity."""
    if source.spec.is_exact:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        if source.bits.flags.c_contiguous and source.bits.dtype in _OF_BLAS:
            whole = source.bits.reshape(-1)
            if math.isfinite(np.dot(whole, whole)):  # at once; a sum that overflows says nothing of who is to blame
                return
        for block in source.blocks(scratch):
            if not _is_finite(block, scratch):
                raise InvalidUpdate(f"{name!r} holds NaN or infinity; expected finite values")


def _is_finite(block: NDArray[Any], scratch: Scratch) -> bool:
    """By the sum of squares, which is the fastest to read memory; it may overflow though all is finite."""
    if block.dtype in _OF_BLAS and math.isfinite(np.dot(block, block)):
        return True
    return bool(np.isfinite(block, out=scratch.flags[: block.size]).all())


def restore(mean: NDArray[Any], spec: Spec, scratch: Scratch) -> Any:
    """The mean as a tensor of the spec: in the same memory, if it is of the same dtype."""
    if spec.device is None:
        return _narrow(mean, np.dtype(spec.dtype), scratch).reshape(spec.shape)
    torch = sys.modules["torch"]
    if spec.dtype in _TORCH_ONLY:
        tensor = torch.from_numpy(mean).to(getattr(torch, spec.dtype))
    else:
        tensor = torch.from_numpy(_narrow(mean, np.dtype(spec.dtype), scratch))
    return tensor.reshape(spec.shape).to(spec.device)


def _narrow(mean: NDArray[Any], dtype: np.dtype[Any], scratch: Scratch) -> NDArray[Any]:
    if dtype.kind == "b":
        return mean > 0.5
    if dtype.kind in "iu":
        return _round(mean, dtype, scratch)
    narrow: NDArray[Any] = mean.astype(dtype, copy=False)
    return narrow


def _round(mean: NDArray[Any], dtype: np.dtype[Any], scratch: Scratch) -> NDArray[Any]:
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
