"""What a tensor of a model must look like: its shape, its dtype, and the dtype to compute with."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl.errors import InvalidUpdate

if TYPE_CHECKING:
    import torch

Model: TypeAlias = "Mapping[str, NDArray[Any] | torch.Tensor]"

# makes the processor wait (4K aliasing): a fold took a tenth longer
_TORCH_ONLY = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")

_ACCUMULATORS: dict[str, np.dtype[Any]] = {
    **dict.fromkeys(("float16", "float32", *_TORCH_ONLY), np.dtype(np.float32)),
    **dict.fromkeys(("bool", "float64"), np.dtype(np.float64)),
    **{f"{sign}int{bits}": np.dtype(np.float64) for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{name: np.dtype(name) for name in ("complex64", "complex128")},
}


def plain(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same in a dict, with arrays of numpy's subclasses, such as memmap, as plain ones in the same memory.

    Raises InvalidUpdate for masked arrays, which would lose their mask.
    """
    for name, tensor in model.items():
        if isinstance(tensor, np.ma.MaskedArray):
            raise InvalidUpdate(f"{name!r}: a masked array; expected one without a mask, as of its filled()")
    return {name: np.asarray(tensor) if isinstance(tensor, np.ndarray) else tensor for name, tensor in model.items()}


def nbytes(model: Mapping[str, Any]) -> int:
    """Return the bytes of its arrays and tensors; 0 for what is none."""
    sizes = [getattr(tensor, "nbytes", 0) for tensor in model.values()]
    return sum([size for size in sizes if isinstance(size, int)])


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
