"""What a model is to a server: names, shapes, dtypes; and its elements, block by block.

Owns what an update must look like (`check`). Everything is read in blocks that stay in the processor's cache, in C
order whatever the layout. float16, bfloat16, float8 and float32 are computed with as float32, float64, integers (those
beyond 2**53 are rounded) and bool as float64, complex as it is. Never keeps an update, never sees a peer.
"""

from __future__ import annotations

import functools
import math
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
_PAGE = 4096  # bytes; models begin where one does, or just behind. To write at the same place of a page as is read next
# makes the processor wait (4K aliasing): a fold took a tenth longer
_TORCH_ONLY = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
_ACCUMULATORS: dict[str, np.dtype[Any]] = {
    **dict.fromkeys(("float16", "float32", *_TORCH_ONLY), np.dtype(np.float32)),
    **dict.fromkeys(("bool", "float64"), np.dtype(np.float64)),
    **{f"{sign}int{bits}": np.dtype(np.float64) for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{name: np.dtype(name) for name in ("complex64", "complex128")},
}


DIFFERENCES = ("float16", "float32", "float64")
_OF_BLAS = (np.dtype(np.float32), np.dtype(np.float64))


class InvalidUpdate(NetqError, ValueError):
    """An update does not fit the model. It was not folded; nothing has changed by it."""


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


def plain(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same in a dict, with arrays of numpy's subclasses, such as memmap, as plain ones in the same memory.

    Raises InvalidUpdate for masked arrays, which would lose their mask.
    """
    for name, tensor in model.items():
        if isinstance(tensor, np.ma.MaskedArray):
            raise InvalidUpdate(f"{name!r}: a masked array; expected one without a mask, as of its filled()")
    return {name: np.asarray(tensor) if isinstance(tensor, np.ndarray) else tensor for name, tensor in model.items()}


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


def nbytes(model: Mapping[str, Any]) -> int:
    """Return the bytes of its arrays and tensors; 0 for what is none."""
    sizes = [getattr(tensor, "nbytes", 0) for tensor in model.values()]
    return sum([size for size in sizes if isinstance(size, int)])


def squared_distance(left: Model, right: Model) -> float:
    """Return the square of the Euclidean distance of two models that are alike, without whole numbers and bools."""
    specs, total = specs_of(left), 0.0
    for (_, one), (_, other) in zip(sources(left, specs), sources(right, specs), strict=True):
        if not one.spec.is_exact:
            for a, b in pairs_of_blocks(one, other):
                change = np.subtract(a, b, dtype=one.spec.accumulator)
                total += float(np.vdot(change, change).real)
    return total


def zeros_like(model: Model) -> dict[str, Any]:
    """Return zeros of the same shapes, dtypes and kinds, for the tensors that are not of whole numbers or bools."""
    inexact = {name: tensor for name, tensor in model.items() if not _spec(name, tensor).is_exact}
    return {name: _zeros_like(tensor) for name, tensor in inexact.items()}


def _zeros_like(tensor: Any) -> Any:
    return sys.modules["torch"].zeros_like(tensor.detach()) if _is_torch(tensor) else np.zeros_like(tensor)


class Spec(NamedTuple):
    """What a tensor must look like."""

    shape: tuple[int, ...]
    dtype: str
    device: Any  # None: numpy

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def accumulator(self) -> np.dtype[Any]:
        """What is computed with."""
        return _ACCUMULATORS[self.dtype]

    @property
    def is_exact(self) -> bool:
        """Whether it holds whole numbers or bools."""
        return self.dtype.startswith(("bool", "int", "uint"))

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


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


def specs_of(like: Model) -> dict[str, Spec]:
    """Return what each tensor of a model must look like; raises InvalidUpdate for one that cannot be computed with."""
    specs = {name: _spec(name, tensor) for name, tensor in like.items()}
    for name, spec in specs.items():
        if spec.dtype not in _ACCUMULATORS:
            raise InvalidUpdate(f"{name!r}: {spec.dtype} has no mean; expected one of {', '.join(_ACCUMULATORS)}")
    return specs


def _spec(name: str, tensor: Any) -> Spec:
    if isinstance(tensor, (np.ndarray, np.generic)):  # arithmetic makes scalars of 0-d arrays
        dtype = tensor.dtype
        return Spec(tensor.shape, dtype.name if dtype.isnative else dtype.str, None)
    if _is_torch(tensor):
        return Spec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.device)
    raise InvalidUpdate(f"{name!r}: a {type(tensor).__name__}; expected a numpy array or a dense torch tensor")


def _is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return False
    return tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_nested or tensor.is_quantized)


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
