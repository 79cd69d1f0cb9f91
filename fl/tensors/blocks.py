"""Reads the elements of a model's tensors block by block, in C order for any memory layout.

A block fits in the processor's cache. float16, bfloat16, float8 and float32 are computed in float32; float64, integers
and bool in float64 (of 64-bit integers the differences: fl/aggregation/integers.py); complex dtypes in their own
precision.
"""

from __future__ import annotations

import functools
import math
import reprlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl.errors import InvalidUpdate
from fl.tensors.dtypes import TORCH_ONLY
from fl.tensors.spec import Model, Spec, spec_of

BLOCK = 64 * 1024  # elements; the fastest for float32 of 4 Ki to 128 Ki, measured with 2 MiB of L2 cache per core

_WIDEST = 16  # bytes of an element of the widest dtype, complex128

# Bytes of a page. Large arrays begin at a page or just behind it. If scratch memory began at the same offset, the
# processor would mistake a store to scratch for a store to the array that is read next, and wait (4K aliasing): a fold
# took a tenth longer. So scratch memory begins a quarter of a page further.
_PAGE = 4096

_BLAS_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


class Source(NamedTuple):
    """A tensor of an update.

    bits: its memory as an array: the elements, or their bit patterns as unsigned integers if numpy lacks the dtype.
    """

    bits: NDArray[Any]
    spec: Spec

    def blocks(self, scratch: Scratch) -> Iterator[NDArray[Any]]:
        """Yield the elements in C order, a block at a time. A block is valid until the next one."""
        if self.bits.size == 0:
            return
        if self.bits.size <= BLOCK and self.bits.flags.c_contiguous and self.bits.dtype.isnative:
            yield self._widen(self.bits.reshape(-1), scratch.wide)
            return
        blocks: Any = np.nditer(self.bits, ["external_loop", "buffered"], ["readonly"], order="C", buffersize=BLOCK)
        for block in blocks:
            yield self._widen(block, scratch.wide)

    def _widen(self, block: NDArray[Any], memory: NDArray[np.float32]) -> NDArray[Any]:
        if self.spec.dtype not in TORCH_ONLY:
            return block
        wide = memory[: block.size]
        if self.spec.dtype == "bfloat16":  # a bfloat16 is the upper half of a float32
            np.left_shift(block, 16, out=wide.view(np.uint32), dtype=np.uint32)
        else:
            np.take(_float8(self.spec.dtype), block, out=wide, mode="clip")
        return wide


def pairs_of_blocks(one: Source, other: Source) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield blocks of two tensors of one shape in C order, in pairs. A pair is valid until the next one."""
    if one.bits.size == 0:
        return
    memory = [np.empty(min(BLOCK, one.bits.size), np.float32) for _ in range(2)]
    flags: Any = ["external_loop", "buffered"]
    blocks: Any = np.nditer([one.bits, other.bits], flags, [["readonly"]] * 2, order="C", buffersize=BLOCK)
    for a, b in blocks:
        yield one._widen(a, memory[0]), other._widen(b, memory[1])


class Scratch:
    """Working memory of one block, allocated once and used for every block."""

    def __init__(self) -> None:
        self.wide = np.empty(BLOCK, np.float32)
        self.flags = np.empty(BLOCK, np.bool_)
        whole = np.empty(BLOCK * _WIDEST + _PAGE, np.uint8)
        start = (_PAGE // 4 - whole.ctypes.data) % _PAGE
        self._bytes = whole[start : start + BLOCK * _WIDEST]

    def of(self, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
        """Return memory for `size` elements, one block at most. Each call returns the same memory."""
        return self._bytes[: size * dtype.itemsize].view(dtype)


def sources(model: Model, specs: Mapping[str, Spec]) -> Iterator[tuple[str, Source]]:
    """Yield the tensors of a model. Raises InvalidUpdate if names, shapes or dtypes differ from the specs.

    Does not read the values.
    """
    check_names(model, specs)
    for name, expected in specs.items():
        tensor = model[name]
        spec = spec_of(name, tensor)
        if spec[:2] != expected[:2]:
            raise InvalidUpdate(f"{name!r} is {spec}; expected {expected}")
        yield name, Source(bits_of(tensor), expected)


def check_names(model: Model, specs: Mapping[str, Spec]) -> None:
    """Raise InvalidUpdate unless a model has the names of the specs, and no others."""
    if not isinstance(model, Mapping):
        raise InvalidUpdate(f"an update is a {type(model).__name__}; expected a mapping of names to arrays")
    for name in specs:
        if name not in model:
            raise InvalidUpdate(f"{name!r} is missing; expected {specs[name]}{_instead(name, model, specs)}")
    for name in model:
        if name not in specs:
            what = reprlib.repr(name) if isinstance(name, str) else f"a key of type {type(name).__name__}"
            raise InvalidUpdate(f"{what} is unexpected; expected the model's {len(specs)} names only")


def _instead(missing: str, model: Model, specs: Mapping[str, Spec]) -> str:
    """Say which name an update has instead of a missing one. Wrappers of a torch module add a prefix to all names."""
    others = [name for name in model if isinstance(name, str) and name not in specs]
    for name in others:
        if f".{name}".endswith(f".{missing}") or f".{missing}".endswith(f".{name}"):
            return (
                f"; the update has {reprlib.repr(name)}, which differs by a prefix, as of a wrapper (torch.compile, "
                "DistributedDataParallel, opacus): take the names of the module that is wrapped"
            )
    return f"; the update has {reprlib.repr(others[0])}, which the model does not have" if others else ""


def bits_of(tensor: Any) -> NDArray[Any]:
    """Return the memory of a tensor as an array of its shape and strides. Copies only from another device."""
    if isinstance(tensor, (np.ndarray, np.generic)):
        return np.asarray(tensor)
    torch = sys.modules["torch"]
    dense = tensor.detach().cpu().resolve_conj().resolve_neg()
    if str(dense.dtype).removeprefix("torch.") in TORCH_ONLY:
        dense = dense.view(torch.uint16 if dense.itemsize == 2 else torch.uint8)
    array: NDArray[Any] = dense.numpy()
    return array


def source_of(name: str, tensor: Any) -> Source:
    """Return a tensor as a Source. Raises InvalidUpdate for any other object."""
    spec = spec_of(name, tensor)
    return Source(bits_of(tensor), spec)


def flat(source: Source, scratch: Scratch) -> NDArray[Any]:
    """Return the elements in C order as float64, of complex dtypes as complex128. Allocates their memory."""
    wide = np.empty(source.spec.size, np.result_type(source.spec.accumulator, np.float64))
    start = 0
    for block in source.blocks(scratch):
        wide[start : start + block.size] = block
        start += block.size
    return wide


def of_bits(bits: NDArray[Any], dtype: str) -> Any:
    """Return the tensor of a dtype that only torch has, in the memory of its bits."""
    torch = sys.modules["torch"]
    return torch.from_numpy(bits).view(getattr(torch, dtype))


def check_finite(name: str, source: Source, scratch: Scratch) -> None:
    """Raise InvalidUpdate if the tensor holds NaN or infinity."""
    if not is_finite(source, scratch):
        raise InvalidUpdate(f"{name!r} holds NaN or infinity; expected finite values")


def is_finite(source: Source, scratch: Scratch) -> bool:
    """Return whether a tensor holds neither NaN nor infinity."""
    if source.spec.is_exact:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        if source.bits.flags.c_contiguous and source.bits.dtype in _BLAS_DTYPES:
            whole = source.bits.reshape(-1)
            if math.isfinite(np.dot(whole, whole)):  # the sum of finite squares may overflow: then look block by block
                return True
        return all(_are_finite(block, scratch) for block in source.blocks(scratch))


def _are_finite(block: NDArray[Any], scratch: Scratch) -> bool:
    """Return whether all elements are finite.

    The sum of squares reads memory fastest. It may overflow although all elements are finite; then each is tested.
    """
    if block.dtype in _BLAS_DTYPES and math.isfinite(np.dot(block, block)):
        return True
    return bool(np.isfinite(block, out=scratch.flags[: block.size]).all())


def restore(mean: NDArray[Any], spec: Spec, scratch: Scratch) -> Any:
    """Return a mean as a tensor of the spec. It keeps the memory of `mean` if the dtypes are equal."""
    if spec.device is None:
        return _narrow(mean, np.dtype(spec.dtype), scratch).reshape(spec.shape)
    torch = sys.modules["torch"]
    if spec.dtype in TORCH_ONLY:
        tensor = torch.from_numpy(mean).to(getattr(torch, spec.dtype))
    else:
        tensor = torch.from_numpy(_narrow(mean, np.dtype(spec.dtype), scratch))
    return tensor.reshape(spec.shape).to(spec.device)


def _narrow(mean: NDArray[Any], dtype: np.dtype[Any], scratch: Scratch) -> NDArray[Any]:
    if dtype.kind == "b":
        return mean > 0.5
    if dtype.kind in "iu" and mean.dtype.kind == "f":
        return _round(mean, dtype, scratch)
    narrow: NDArray[Any] = mean.astype(dtype, copy=False)
    return narrow


def _round(mean: NDArray[Any], dtype: np.dtype[Any], scratch: Scratch) -> NDArray[Any]:
    rounded = np.empty(mean.size, dtype)
    low, high = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    for start in range(0, mean.size, BLOCK):
        block = mean[start : start + BLOCK]
        whole = np.rint(block, out=scratch.of(mean.dtype, block.size))
        rounded[start : start + BLOCK] = np.clip(whole, low, high, out=whole)
    return rounded


@functools.cache
def _float8(dtype: str) -> NDArray[np.float32]:
    """Return the float32 values of the 256 bit patterns of a float8 dtype."""
    torch = sys.modules["torch"]
    values: NDArray[np.float32] = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).float().numpy()
    return values
