"""The values of an update in fewer bits, and back.

Called by fl/compression/compressor.py to encode and by fl/compression/packed.py to decode, a whole tensor's values at
a time. Pure: works in blocks that stay in the processor's cache, keeps nothing, and never sees a model or a peer.

    float64, float32   as they are
    bfloat16           the upper half of a float32, rounded to the nearest
    float16            over the row's scale, a power of two, rounded to the nearest
    int8, int4         over the row's scale, rounded up or down at random, so that the mean is the value

A row is of ROW elements, the last perhaps of fewer; its scale is a float32. The bytes are those of the scales, then
those of the elements, all little-endian; of two int4 the first is the lower half of a byte, with 8 added to each.

Source of the random rounding: Alistarh et al., 2017, "QSGD: Communication-efficient SGD via gradient quantization and
encoding", equation 1; here with a row's largest magnitude for its norm, and the signs among the levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl.errors import InvalidUpdate

BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4}  # of an element
LIMIT = 2.0**126  # no magnitude above it can be encoded as other than float32 and float64

# Elements. A shorter row costs more scales, and its largest magnitude is less: the error of int8, and the bytes above
# 1 an element, are for normal values 1.23 % and 0.1 % with rows of 4096, 1.11 % and 0.4 % with 1024, 1.05 % and 0.8 %
# with 512, 0.99 % and 1.6 % with 256; for Student's t of 3 degrees they are 6.7 %, 4.1 %, 3.3 % and 2.6 %.
ROW = 512

_CHUNK = 32 * 1024  # elements, whole rows; of 4 Ki to 128 Ki the smallest that is about as fast as any
_SCALED = ("float16", "int8", "int4")
_LEVELS = {"int8": 127, "int4": 7}
_SPARE = 1 + 2.0**-20  # so that the largest of a row, and a random number below 1, stay within the levels
_LEAST = 2.0**-100  # a row without a larger magnitude is encoded as zeros: its scale would be too small for a float32


def nbytes(coding: str, count: int) -> int:
    """Return how many bytes `count` values are."""
    return _scale_bytes(coding, count) + -(-count * BITS[coding] // 8)


def encode(values: NDArray[Any], coding: str, random: np.random.BitGenerator) -> NDArray[np.uint8]:
    """Return the bytes of a flat array: of float64 for the coding of that name, else of float32 up to LIMIT.

    The mean of int8 and int4 is the value up to 2**-16 of a step; a step is a row's largest magnitude over 127 or 7.
    """
    data = np.empty(nbytes(coding, values.size), np.uint8)
    scales, codes = _parts(data, coding, values.size)
    for start in range(0, values.size, _CHUNK):
        block = values[start : start + _CHUNK]
        if coding in _SCALED:
            scale = _scales(block, coding)
            scales[start // ROW :][: scale.size] = scale
            inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
            block = block * _spread(inverse, block.size)
        if coding in _LEVELS:
            block = _rounded(block, random)
        code = _ENCODE[coding](block)
        codes[start * BITS[coding] // 8 :][: code.nbytes] = code.view(np.uint8)
    return data


def decode(data: NDArray[np.uint8], coding: str, count: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield where a block of values begins, and the block, which is not to be written.

    It is of float64 for the coding of that name, else of float32. `data` has `nbytes` bytes; nothing else of it is
    believed: raises InvalidUpdate for NaN and infinity.
    """
    scales, codes = _parts(data, coding, count)
    for start in range(0, count, _CHUNK):
        stop = min(start + _CHUNK, count)
        code = codes[start * BITS[coding] // 8 : -(-stop * BITS[coding] // 8)]
        yield start, _decoded(code, coding, scales[start // ROW : -(-stop // ROW)], stop - start)


def _decoded(code: NDArray[np.uint8], coding: str, scales: NDArray[np.float32], size: int) -> NDArray[Any]:
    values = _DECODE[coding](code)[:size]
    with np.errstate(over="ignore", invalid="ignore"):
        if coding in _SCALED:
            values *= _spread(scales, size)
        finite = math.isfinite(np.dot(values, values)) or np.isfinite(values).all()  # the dot is faster, but overflows
    if not finite:
        raise InvalidUpdate("its values are NaN or infinite; expected finite ones")
    return values


def _parts(data: NDArray[np.uint8], coding: str, count: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """The scales and the codes, as views."""
    split = _scale_bytes(coding, count)
    return data[:split].view("<f4"), data[split:]


def _scale_bytes(coding: str, count: int) -> int:
    return 4 * -(-count // ROW) if coding in _SCALED else 0


def _scales(block: NDArray[np.float32], coding: str) -> NDArray[np.float32]:
    """One for each row of the block."""
    largest = np.maximum.reduceat(np.abs(block), np.arange(0, block.size, ROW))
    if coding in _LEVELS:
        scales = largest * np.float32(_SPARE / _LEVELS[coding])
    else:
        scales = np.ldexp(np.float32(1), np.frexp(largest)[1] - 15)  # magnitudes of 2**15 at most: half of float16's
    scales[largest < _LEAST] = 0
    return scales


def _spread(scales: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """To each element its row's."""
    return np.repeat(scales, ROW)[:size]


def _rounded(block: NDArray[np.float32], random: np.random.BitGenerator) -> NDArray[np.float32]:
    """Up with a probability of the fraction, else down. 16 random bits an element are a third of its time."""
    bits: NDArray[np.uint64] = random.random_raw(-(-block.size // 4))
    block += bits.view(np.uint16)[: block.size] * np.float32(2**-16)
    return np.floor(block, out=block)


def _to_bfloat16(block: NDArray[np.float32]) -> NDArray[Any]:
    bits = block.view(np.uint32)
    nearest = bits + (bits >> np.uint32(16) & np.uint32(1)) + np.uint32(0x7FFF)  # halves to the even
    return (nearest >> np.uint32(16)).astype("<u2")


def _from_bfloat16(code: NDArray[np.uint8]) -> NDArray[np.float32]:
    return (code.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _to_int4(block: NDArray[np.float32]) -> NDArray[np.uint8]:
    codes = np.zeros(block.size + block.size % 2, np.uint8)
    codes[: block.size] = block + np.float32(8)
    pairs = codes.view("<u2")
    halves: NDArray[np.uint16] = pairs | pairs >> np.uint16(4)
    return halves.astype(np.uint8)


def _from_int4(code: NDArray[np.uint8]) -> NDArray[np.float32]:
    pairs = code.astype("<u2")
    pairs |= pairs << np.uint16(4)
    pairs &= np.uint16(0x0F0F)
    return pairs.view(np.uint8).astype(np.float32) - np.float32(8)


_ENCODE: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "float64": lambda block: block.astype("<f8"),
    "float32": lambda block: block.astype("<f4"),
    "float16": lambda block: block.astype("<f2"),
    "bfloat16": _to_bfloat16,
    "int8": lambda block: block.astype(np.int8),
    "int4": _to_int4,
}
_DECODE: dict[str, Callable[[NDArray[np.uint8]], NDArray[Any]]] = {
    "float64": lambda code: code.view("<f8"),
    "float32": lambda code: code.view("<f4"),
    "float16": lambda code: code.view("<f2").astype(np.float32),
    "bfloat16": _from_bfloat16,
    "int8": lambda code: code.view(np.int8).astype(np.float32),
    "int4": _from_int4,
}
