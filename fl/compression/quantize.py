"""Quantisation: encodes the values of a tensor in fewer bits, and decodes them.

fl/compression/compressor.py encodes, fl/compression/packed.py decodes, a whole tensor at a time. Pure functions, which
work in blocks that fit in the processor's cache.

    float64, float32   unchanged
    bfloat16           upper half of a float32, rounded to nearest
    float16            value / scale, rounded to nearest; the scale is a power of two
    int8, int4         value / scale, rounded up or down at random so that the expectation is the value

A row has ROW elements (the last row may have fewer) and one scale, a float32. The data are the scales, then the values,
all little-endian. A byte holds two int4, the first in its lower half, each with 8 added.

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

BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4}  # per element
LIMIT = 2.0**126  # largest magnitude of the codings other than float32 and float64

# Elements of a row. Shorter rows have a smaller largest magnitude, hence a smaller error, but more scales. Error of
# int8 for normal values, and bytes of the scales per byte of values: 1.23 % and 0.1 % with rows of 4096, 1.11 % and
# 0.4 % with 1024, 1.05 % and 0.8 % with 512, 0.99 % and 1.6 % with 256. Errors for Student's t with 3 degrees of
# freedom: 6.7 %, 4.1 %, 3.3 % and 2.6 %.
ROW = 512

_CHUNK = 32 * 1024  # elements of a block, whole rows; of 4 Ki to 128 Ki the smallest at nearly the best speed
_SCALED = ("float16", "int8", "int4")
_LEVELS = {"int8": 127, "int4": 7}
_SPARE = 1 + 2.0**-20  # margin of the scale: the largest value of a row plus a random number below 1 stays in range
_MIN_MAGNITUDE = 2.0**-100  # a row of smaller magnitudes becomes zeros: its scale would underflow a float32


def nbytes(coding: str, count: int) -> int:
    """Return the number of bytes of `count` values."""
    return _scale_bytes(coding, count) + -(-count * BITS[coding] // 8)


def encode(values: NDArray[Any], coding: str, random: np.random.BitGenerator) -> NDArray[np.uint8]:
    """Encode a flat array: float64 for the coding float64, else float32 of magnitudes up to LIMIT.

    The expectation of int8 and int4 differs from the value by 2**-16 of a step at most. A step is the largest magnitude
    of a row, divided by 127 or 7.
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
    """Yield the start of each block of values, and the block.

    Do not write to a block. It is of float64 for the coding float64, else of float32. The length of `data` must be
    `nbytes`; its content comes from a peer: raises InvalidUpdate for NaN and infinity.
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
        # The dot product is faster, but may overflow.
        finite = math.isfinite(np.dot(values, values)) or np.isfinite(values).all()
    if not finite:
        raise InvalidUpdate("its values are NaN or infinite; expected finite ones")
    return values


def _parts(data: NDArray[np.uint8], coding: str, count: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return views of the scales and of the codes."""
    split = _scale_bytes(coding, count)
    return data[:split].view("<f4"), data[split:]


def _scale_bytes(coding: str, count: int) -> int:
    return 4 * -(-count // ROW) if coding in _SCALED else 0


def _scales(block: NDArray[np.float32], coding: str) -> NDArray[np.float32]:
    """Return the scale of each row of the block."""
    largest = np.maximum.reduceat(np.abs(block), np.arange(0, block.size, ROW))
    if coding in _LEVELS:
        scales = largest * np.float32(_SPARE / _LEVELS[coding])
    else:
        # Scaled magnitudes are up to 2**15, half of float16's range.
        scales = np.ldexp(np.float32(1), np.frexp(largest)[1] - 15)
    scales[largest < _MIN_MAGNITUDE] = 0
    return scales


def _spread(scales: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Return the scale of each element."""
    return np.repeat(scales, ROW)[:size]


def _rounded(block: NDArray[np.float32], random: np.random.BitGenerator) -> NDArray[np.float32]:
    """Round up with the probability of the fraction, else down. Overwrites the block.

    16 random bits per element are enough, and already take a third of the time of `encode`.
    """
    bits: NDArray[np.uint64] = random.random_raw(-(-block.size // 4))
    block += bits.view(np.uint16)[: block.size] * np.float32(2**-16)
    return np.floor(block, out=block)


def to_bfloat16(block: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of finite values as bfloat16, rounded to nearest. Beyond its range they are infinite."""
    bits = block.view(np.uint32)
    # Round the lower 16 bits into the upper 16: adding 0x7FFF carries if the lower bits exceed 0x8000. The lowest of
    # the upper bits is added too, so that a tie (0x8000) carries only if this bit is 1.
    nearest = bits + (bits >> np.uint32(16) & np.uint32(1)) + np.uint32(0x7FFF)  # ties to even
    rounded: NDArray[np.uint16] = (nearest >> np.uint32(16)).astype("<u2")
    return rounded


def from_bfloat16(code: NDArray[np.uint8] | NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the values of bfloat16 from their bits."""
    return (code.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _to_int4(block: NDArray[np.float32]) -> NDArray[np.uint8]:
    codes = np.zeros(block.size + block.size % 2, np.uint8)
    codes[: block.size] = block + np.float32(8)
    # A uint16 holds two codes, 0x0b0a. Shifted by four bits and combined, its lower byte is 0xba: both codes.
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
    "bfloat16": to_bfloat16,
    "int8": lambda block: block.astype(np.int8),
    "int4": _to_int4,
}
_DECODE: dict[str, Callable[[NDArray[np.uint8]], NDArray[Any]]] = {
    "float64": lambda code: code.view("<f8"),
    "float32": lambda code: code.view("<f4"),
    "float16": lambda code: code.view("<f2").astype(np.float32),
    "bfloat16": from_bfloat16,
    "int8": lambda code: code.view(np.int8).astype(np.float32),
    "int4": _from_int4,
}
