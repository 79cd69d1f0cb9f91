"""The packed form of a tensor's change, and how the server unpacks it.

fl/compression/compressor.py makes a `Packed`, which travels in an Update. The server reads such an update through
`Unpacked`, one tensor at a time. A Packed comes from a peer: it costs no memory by its claims before they have been
compared with the server's model, and it unpacks to a finite change of that shape, or raises InvalidUpdate.

The data are scales and values (fl/compression/quantize.py), then places (fl/compression/sparse.py) if some but not all
elements are sent. Their length follows from shape, coding and count. With `zstd` they are one Zstandard frame
(RFC 8878) whose header has that length.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fl.checks import expect
from fl.compression import quantize, sparse
from fl.errors import InvalidUpdate
from fl.tensors.blocks import bits_of, of_bits
from fl.tensors.dtypes import DELTA_DTYPES, MAX_DIMS, TORCH_ONLY
from fl.tensors.spec import Model, specs_of
from netq.validate import is_whole

_MAX_SIZE = 2**48  # elements of a tensor


@dataclass(frozen=True, eq=False)
class Packed:
    """The change of a tensor. Raises InvalidUpdate.

    dtype, shape: of the tensor.
    coding:       of the values: a name in fl.compression.quantize.BITS.
    count:        number of elements that are sent; the others have not changed.
    zstd:         whether `data` is compressed; then it is shorter than without.
    data:         flat array of uint8.
    """

    dtype: str
    shape: tuple[int, ...]
    coding: str
    count: int
    zstd: bool
    data: NDArray[np.uint8]

    def __post_init__(self) -> None:
        _expect_text("dtype", self.dtype, DELTA_DTYPES)
        expect(is_shape(self.shape), "shape", self.shape, f"a tuple of whole numbers, of {_MAX_SIZE} elements at most")
        _expect_text("coding", self.coding, quantize.BITS)
        counted = is_whole(self.count, 0, self.size)
        expect(counted, "count", self.count, f"a whole number of {self.size} elements at most")
        expect(type(self.zstd) is bool, "zstd", self.zstd, "True or False")
        expect(_is_flat(self.data), "data", self.data, "a flat array of uint8")
        size, whole = self.data.size, self._whole
        right = size < whole if self.zstd else size == whole
        expect(right, "data", self.data, f"{'fewer than ' if self.zstd else ''}{whole} bytes, not {size}")

    @property
    def size(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that are sent."""
        return self.data.nbytes

    def unpack(self, start: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the change, or `start` plus the change, in new memory. A bfloat16 is returned and given as its bits.

        Allocates the memory that dtype and shape claim: compare them with the expected ones first. A sum that overflows
        the dtype is infinite. Raises InvalidUpdate.
        """
        dtype = np.uint16 if self.dtype == "bfloat16" else np.dtype(self.dtype)
        result = np.zeros(self.shape, dtype) if start is None else np.array(start, dtype, order="C")
        flat = result.reshape(-1)
        for where, values in self.blocks():
            with np.errstate(over="ignore"):
                if dtype == np.uint16:
                    total = quantize.from_bfloat16(flat[where]) + values
                    flat[where] = quantize.to_bfloat16(total.astype(np.float32, copy=False))
                else:
                    flat[where] += values
        return result

    def blocks(self) -> Iterator[tuple[slice | NDArray[Any], NDArray[Any]]]:
        """Yield places in the flat tensor, and the changes of the elements there. Raises InvalidUpdate."""
        data = self._decompressed() if self.zstd else self.data
        split = quantize.nbytes(self.coding, self.count)
        places = sparse.decode(data[split:], self.count, self.size) if 0 < self.count < self.size else None
        for start, values in quantize.decode(data[:split], self.coding, self.count):
            where = slice(start, start + values.size)
            yield where if places is None else places[where], values

    def compressed(self, level: int) -> Self:
        """Return a copy compressed by Zstandard, or this object if that is not longer. Raises ImportError."""
        frame = np.frombuffer(zstandard().ZstdCompressor(level=level).compress(self.data), np.uint8)
        return replace(self, zstd=True, data=frame) if frame.size < self.data.size else self

    @property
    def _whole(self) -> int:
        """Bytes before compression by Zstandard."""
        return quantize.nbytes(self.coding, self.count) + sparse.nbytes(self.count, self.size)

    def _decompressed(self) -> NDArray[np.uint8]:
        try:
            library = zstandard()
        except ImportError as error:
            raise InvalidUpdate(f"it is compressed, and {error}") from error
        try:
            announced = library.frame_content_size(self.data)
            if announced != self._whole:  # it would be given so much memory, whatever the limit
                raise InvalidUpdate(f"its zstd frame announces {announced} bytes; expected {self._whole}")
            data = library.ZstdDecompressor().decompress(self.data, self._whole, allow_extra_data=False)
        except library.ZstdError as error:
            raise InvalidUpdate(f"its zstd frame cannot be read: {error}") from error
        return np.frombuffer(data, np.uint8)


class Unpacked(Mapping[str, Any]):
    """The model of an update: a packed tensor is `start` plus its change; others are unchanged.

    The sum is a numpy array, or a tensor of torch on the CPU if it is bfloat16.
    A tensor is decoded at each access, and not kept.

    start:  the model that the client was sent; with `deltas`, any model of the same dtypes and shapes.
    deltas: whether to give the changes of packed tensors instead.

    Raises InvalidUpdate for a packed tensor that has no counterpart of its dtype and shape in `start`, and on access
    for one that cannot be decoded.
    """

    def __init__(self, model: Mapping[str, Any], start: Model, *, deltas: bool = False) -> None:
        self._model, self._start, self._deltas = model, start, deltas
        specs = specs_of(start)
        for name, packed in model.items():
            if isinstance(packed, Packed):
                if name not in specs:
                    raise InvalidUpdate(f"{reprlib.repr(name)} is unexpected; expected the model's names only")
                if (packed.shape, packed.dtype) != specs[name][:2]:
                    what = f"the change of a {packed.dtype} of shape {packed.shape}"
                    raise InvalidUpdate(f"{name!r} is {what}; expected that of a {specs[name]}")

    def __getitem__(self, name: str) -> Any:
        packed = self._model[name]
        if not isinstance(packed, Packed):
            return packed
        try:
            unpacked = packed.unpack(None if self._deltas else bits_of(self._start[name]))
            return of_bits(unpacked, packed.dtype) if packed.dtype in TORCH_ONLY else unpacked
        except InvalidUpdate as error:
            raise InvalidUpdate(f"{name!r}: {error}") from error

    def __contains__(self, name: object) -> bool:
        return name in self._model  # Mapping's default would decode the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._model)

    def __len__(self) -> int:
        return len(self._model)


def unpacked(model: dict[str, Any], start: Model, *, deltas: bool) -> Mapping[str, Any]:
    """Return an update whose tensors are not packed: the same, if none of them is. Arguments, errors: see Unpacked."""
    return Unpacked(model, start, deltas=deltas) if any(isinstance(each, Packed) for each in model.values()) else model


def zstandard() -> Any:
    """Return the library. Raises ImportError, which names the package to install."""
    try:
        import zstandard
    except ImportError as error:
        raise ImportError("zstd needs zstandard: pip install zstandard", name="zstandard") from error
    return zstandard


def _expect_text(name: str, value: object, known: Mapping[str, Any] | tuple[str, ...]) -> None:
    expect(type(value) is str and value in known, name, value, f"one of {', '.join(known)}")


def is_shape(shape: object) -> bool:
    """Return whether this is the shape of a tensor that fl accepts."""
    if type(shape) is not tuple or len(shape) > MAX_DIMS:
        return False
    whole = all(is_whole(size, 0, _MAX_SIZE) for size in shape)
    return whole and math.prod(max(size, 1) for size in shape) <= _MAX_SIZE


def _is_flat(data: object) -> bool:
    return type(data) is np.ndarray and data.dtype == np.uint8 and data.ndim == 1 and data.flags.c_contiguous
