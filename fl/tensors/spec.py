"""The specs of a model's tensors: shape, dtype, device, and the dtype of the computation."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl.errors import InvalidUpdate
from fl.tensors.dtypes import TORCH_ONLY

if TYPE_CHECKING:
    import torch

Model: TypeAlias = "Mapping[str, NDArray[Any] | torch.Tensor]"

# dtype of a tensor -> dtype of the accumulator that its mean is computed in
_ACCUMULATORS: dict[str, np.dtype[Any]] = {
    **dict.fromkeys(("float16", "float32", *TORCH_ONLY), np.dtype(np.float32)),
    **dict.fromkeys(("bool", "float64"), np.dtype(np.float64)),
    **{f"{sign}int{bits}": np.dtype(np.float64) for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{name: np.dtype(name) for name in ("complex64", "complex128")},
}
DTYPES = tuple(_ACCUMULATORS)  # of a model's tensors


def plain(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict of the same tensors. An array of a numpy subclass (memmap) becomes a plain view of its memory, and
    a numpy scalar an array.

    Raises InvalidUpdate for a masked array, because a plain view loses the mask.
    """
    for name, tensor in model.items():
        if isinstance(tensor, np.ma.MaskedArray):
            raise InvalidUpdate(f"{name!r}: a masked array; expected one without a mask, as of its filled()")
    of_numpy = (np.ndarray, np.generic)
    return {name: np.asarray(tensor) if isinstance(tensor, of_numpy) else tensor for name, tensor in model.items()}


def nbytes(model: Mapping[str, Any]) -> int:
    """Return the total bytes of the arrays and tensors. Other values count as 0."""
    sizes = [getattr(tensor, "nbytes", 0) for tensor in model.values()]
    return sum([size for size in sizes if isinstance(size, int)])


def zeros_like(model: Model) -> dict[str, Any]:
    """Return zeros of the same shapes, dtypes and kinds (numpy or torch), without the integer and bool tensors."""
    inexact = {name: tensor for name, tensor in model.items() if not spec_of(name, tensor).is_exact}
    return {name: _zeros_like(tensor) for name, tensor in inexact.items()}


def _zeros_like(tensor: Any) -> Any:
    return sys.modules["torch"].zeros_like(tensor.detach()) if is_torch(tensor) else np.zeros_like(tensor)


class Spec(NamedTuple):
    """Shape, dtype and device of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    device: Any  # of torch; None for a numpy array

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def numbers(self) -> int:
        """Real numbers in all elements: a complex one has two."""
        return self.size * (2 if self.accumulator.kind == "c" else 1)

    @property
    def accumulator(self) -> np.dtype[Any]:
        """The dtype that sums and means are computed in."""
        return _ACCUMULATORS[self.dtype]

    @property
    def is_exact(self) -> bool:
        """Whether the dtype is an integer or bool. Means of such tensors are rounded."""
        return self.dtype.startswith(("bool", "int", "uint"))

    @property
    def is_long(self) -> bool:
        """Whether the dtype has integers that no float64 holds: fl/aggregation/integers.py computes with them."""
        return self.dtype in ("int64", "uint64")

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


def specs_of(like: Model) -> dict[str, Spec]:
    """Return the spec of each tensor. Raises InvalidUpdate for a dtype that has no mean."""
    specs = {name: spec_of(name, tensor) for name, tensor in like.items()}
    for name, spec in specs.items():
        if spec.dtype not in DTYPES:
            raise InvalidUpdate(f"{name!r}: {spec.dtype} has no mean; expected one of {', '.join(DTYPES)}")
    return specs


def spec_of(name: str, tensor: Any) -> Spec:
    """Return the spec of a tensor. Raises InvalidUpdate, with the name, for any other object."""
    if isinstance(tensor, (np.ndarray, np.generic)):  # numpy arithmetic turns 0-d arrays into scalars
        return Spec(tensor.shape, _numpy_name(tensor.dtype), None)
    if is_torch(tensor):
        return Spec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.device)
    raise InvalidUpdate(f"{name!r}: a {type(tensor).__name__}; expected a numpy array or a dense torch tensor")


@functools.lru_cache(64)
def _numpy_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype. numpy makes it anew each time, which takes longer than all else of a small tensor."""
    return dtype.name if dtype.isnative else dtype.str


def is_torch(tensor: Any) -> bool:
    """Return whether this is a dense torch tensor with values. Never imports torch."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return False
    return tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_nested or tensor.is_quantized)
