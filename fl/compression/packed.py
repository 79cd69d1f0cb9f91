"""What a client sends of a tensor instead of the tensor: how it has changed, in few bytes; and the tensor again.

`Packed` travels in an Update, made by fl/compression/compressor.py; `Unpacked` is how the server reads such an update,
one tensor at a time. Everything in a Packed is a peer's word: what it announces costs no memory before it has been
compared with the server's own model, and what comes out is a finite change of that shape, or InvalidUpdate.

The bytes: scales and values (fl/compression/quantize.py), then places (fl/compression/sparse.py), where not all
elements or none are sent. How many they are follows from the shape, the coding and the count. `zstd`: they are in one
frame of Zstandard (RFC 8878) that says how many they were.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fl.compression import quantize, sparse
from fl.errors import InvalidUpdate
from fl.tensors.blocks import sources
from fl.tensors.checks import expect
from fl.tensors.dtypes import DELTA_DTYPES, MAX_DIMS
from fl.tensors.spec import Model, specs_of
from netq.validate import is_whole

_MAX_SIZE = 2**48  # elements


@dataclass(frozen=True, eq=False)
class Packed:
    """How a tensor has changed. Raises InvalidUpdate.

    dtype, shape: the tensor's.
    coding:       of the values: a name of fl.compression.quantize.BITS.
    count:        how many elements are sent; the others have not changed.
    zstd:         whether `data` is compressed, and shorter for it.
    data:         flat, of uint8.
    """

    dtype: str
    shape: tuple[int, ...]
    coding: str
    count: int
    zstd: bool
    data: NDArray[np.uint8]

    def __post_init__(self) -> None:
        _expect_text("dtype", self.dtype, DELTA_DTYPES)
        expect(_is_shape(self.shape), "shape", self.shape, f"a tuple of whole numbers, of {_MAX_SIZE} elements at most")
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
        """The tensor's elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return self.data.nbytes

    def unpack(self, start: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the change; or, given what the tensor was, what it has become. In memory of its own.

        Only after dtype and shape have been compared with what is expected, for this takes the memory that they
        announce. Raises InvalidUpdate. A sum that exceeds the dtype is infinite.
        """
        result = np.zeros(self.shape, self.dtype) if start is None else np.array(start, self.dtype, order="C")
        flat = result.reshape(-1)
        for where, values in self.blocks():
            with np.errstate(over="ignore"):
                flat[where] += values
        return result

    def blocks(self) -> Iterator[tuple[slice | NDArray[Any], NDArray[Any]]]:
        """Yield places in the flat tensor, and by how much their elements have changed. Raises InvalidUpdate."""
        data = self._decompressed() if self.zstd else self.data
        split = quantize.nbytes(self.coding, self.count)
        places = sparse.decode(data[split:], self.count, self.size) if 0 < self.count < self.size else None
        for start, values in quantize.decode(data[:split], self.coding, self.count):
            where = slice(start, start + values.size)
            yield where if places is None else places[where], values

    def compressed(self, level: int) -> Self:
        """Return the same compressed by Zstandard; or this one, if that is not shorter. Raises ImportError."""
        frame = np.frombuffer(zstandard().ZstdCompressor(level=level).compress(self.data), np.uint8)
        return replace(self, zstd=True, data=frame) if frame.size < self.data.size else self

    @property
    def _whole(self) -> int:
        """Bytes before compression."""
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
    """The tensors of an update as they are after training: of the packed, `start` and the change, as numpy arrays.

    Decoded at each access, and not kept. Of an update that is not packed they are its tensors as they are.

    start:  the model that the update's client was sent; with `deltas`, any of its dtypes and shapes.
    deltas: give the packed tensors' changes instead.

    Raises InvalidUpdate for a packed tensor that `start` has not, or has with another dtype or shape; and at access
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
            return packed.unpack(None if self._deltas else _array(name, self._start[name]))
        except InvalidUpdate as error:
            raise InvalidUpdate(f"{name!r}: {error}") from error

    def __contains__(self, name: object) -> bool:
        return name in self._model  # without decoding it

    def __iter__(self) -> Iterator[str]:
        return iter(self._model)

    def __len__(self) -> int:
        return len(self._model)


def zstandard() -> Any:
    """Return the library, which is an extra. Raises ImportError, and says which."""
    try:
        import zstandard
    except ImportError as error:
        raise ImportError("zstd needs zstandard: pip install zstandard", name="zstandard") from error
    return zstandard


def _array(name: str, tensor: Any) -> NDArray[Any]:
    """A tensor as an array, uncopied if it lies on the CPU."""
    [(_, source)] = sources({name: tensor}, specs_of({name: tensor}))
    return source.bits


def _expect_text(name: str, value: object, known: Mapping[str, Any] | tuple[str, ...]) -> None:
    expect(type(value) is str and value in known, name, value, f"one of {', '.join(known)}")


def _is_shape(shape: object) -> bool:
    if type(shape) is not tuple or len(shape) > MAX_DIMS:
        return False
    whole = all(is_whole(size, 0, _MAX_SIZE) for size in shape)
    return whole and math.prod(max(size, 1) for size in shape) <= _MAX_SIZE


def _is_flat(data: object) -> bool:
    return type(data) is np.ndarray and data.dtype == np.uint8 and data.ndim == 1 and data.flags.c_contiguous
