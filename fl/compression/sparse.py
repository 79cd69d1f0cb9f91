"""Sparsification: selects the largest elements of a tensor (top-k), and encodes their places.

fl/compression/compressor.py selects and encodes, fl/compression/packed.py decodes. Pure functions.

Places are encoded as a bitmap of the tensor, or by the Elias-Fano code (Elias, 1974, "Efficient storage and retrieval
by content and address of static files"), whichever is shorter. The choice and the length follow from the number of
places and the size of the tensor. In the Elias-Fano code the lower bits of all places come first: bit 0 of each, then
bit 1 of each, and so on. Then comes a bitmap of the upper bits: for place number i with upper bits h, bit h + i is set.
At 5 % of the elements this takes 6.25 bits per place; the entropy is 5.7, and a variable-length integer takes 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl.errors import InvalidUpdate

_CHUNK = 32 * 1024  # elements; see fl/compression/quantize.py
_DIGITS = ((20, 11), (10, 10), (0, 10))  # (shift, width) of the digits of a magnitude's 31 bits, for radix selection


def largest(values: NDArray[np.float32], count: int) -> NDArray[Any]:
    """Return the places of the `count` elements of the largest magnitudes, in increasing order. Omits zeros.

    Of equal magnitudes the first are selected. The result is exact: radix selection takes one pass over the values for
    each digit, and no memory except for the result.
    """
    threshold, ties = _threshold(values, count)
    found = []
    for start, magnitudes in _blocks(values):
        here = np.flatnonzero(magnitudes >= threshold)
        equal = magnitudes[here] == threshold
        here = here[~equal | (np.cumsum(equal) <= ties)]
        ties -= min(ties, int(np.count_nonzero(equal)))
        found.append((here + start).astype(_dtype(values.size)))
    return np.concatenate(found)


def nbytes(count: int, size: int) -> int:
    """Return the number of bytes of the places of `count` of `size` elements; 0 if all or none are selected."""
    if count in (0, size):
        return 0
    low = _low_bits(count, size)
    return min(-(-size // 8), low * -(-count // 8) + -(-_high_bits(count, size, low) // 8))


def encode(places: NDArray[Any], size: int) -> NDArray[np.uint8]:
    """Encode places, which must be in increasing order."""
    need = nbytes(places.size, size)
    if need == 0:
        return np.empty(0, np.uint8)
    if need == -(-size // 8):
        return _bitmap(places, size)
    low = _low_bits(places.size, size)
    planes = [np.packbits((places >> bit & 1).astype(np.bool_)) for bit in range(low)]
    high = (places >> low) + np.arange(places.size, dtype=places.dtype)
    return np.concatenate([*planes, _bitmap(high, _high_bits(places.size, size, low))])


def decode(data: NDArray[np.uint8], count: int, size: int) -> NDArray[Any]:
    """Return the places. Raises InvalidUpdate unless they increase and are below `size`. `data` must have `nbytes`."""
    if data.size == -(-size // 8):
        return _ones(data, count, size, _dtype(size))
    low, width = _low_bits(count, size), -(-count // 8)
    # Each set bit of the upper bitmap is h + i. Subtracting i gives the upper bits h, which do not decrease; a peer's
    # bitmap cannot give a negative number, since the bits are distinct and sorted.
    places = _ones(data[low * width :], count, _high_bits(count, size, low), _dtype(size))
    places -= np.arange(count, dtype=places.dtype)
    places <<= low
    for bit in range(low):
        plane = np.unpackbits(data[bit * width : (bit + 1) * width], count=count)
        places |= plane.astype(places.dtype) << bit
    if not ((places[1:] > places[:-1]).all() and places[-1] < size):
        raise InvalidUpdate(f"its places are out of order or range; expected increasing ones below {size}")
    return places


def _threshold(values: NDArray[np.float32], count: int) -> tuple[int, int]:
    """Return the smallest magnitude that is selected, and how many elements of that magnitude are.

    Magnitudes are compared by their bits: positive floats have the order of their bit patterns. The digits of the
    threshold are found from the highest: each pass counts the next digit of the magnitudes that begin with the digits
    found so far.
    """
    threshold, left = 0, count
    for shift, width in _DIGITS:
        counts = np.zeros(1 << width, np.int64)
        for _, magnitudes in _blocks(values):
            digits = magnitudes >> np.uint32(shift)
            if shift + width < 31:
                digits = digits[digits >> np.uint32(width) == threshold]
            counts += np.bincount(digits & np.uint32((1 << width) - 1), minlength=1 << width)
        above = counts[::-1].cumsum()
        digit = int(np.searchsorted(above, left))
        left -= int(above[digit - 1]) if digit else 0
        threshold = threshold << width | (1 << width) - 1 - digit
    return (threshold, left) if threshold else (1, count)


def _blocks(values: NDArray[np.float32]) -> Iterator[tuple[int, NDArray[np.uint32]]]:
    """Yield the start of each block, and its magnitudes as bit patterns."""
    for start in range(0, values.size, _CHUNK):
        yield start, values[start : start + _CHUNK].view(np.uint32) & np.uint32(0x7FFFFFFF)


def _low_bits(count: int, size: int) -> int:
    return (size // count).bit_length() - 1


def _high_bits(count: int, size: int, low: int) -> int:
    return count + (size - 1 >> low)


def _dtype(size: int) -> np.dtype[Any]:
    return np.dtype(np.uint32 if size <= 2**32 else np.uint64)


def _bitmap(places: NDArray[Any], size: int) -> NDArray[np.uint8]:
    flags = np.zeros(size, np.bool_)
    flags[places] = True
    return np.packbits(flags)


def _ones(bitmap: NDArray[np.uint8], count: int, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the places of the ones among `size` bits. Raises InvalidUpdate unless there are `count` of them."""
    ones, at = np.empty(count, dtype), 0
    for start in range(0, size, _CHUNK):
        bits = np.unpackbits(bitmap[start // 8 : (start + _CHUNK) // 8])[: size - start]
        here = np.flatnonzero(bits)
        if at + here.size > count:
            break
        ones[at : at + here.size] = here + start
        at += here.size
    else:
        if at == count:
            return ones
    raise InvalidUpdate(f"its bitmap has not the {count} ones that it announces")
