"""The vector that a client sends under masks, and the masks. Pure.

A vector has 32-bit words, of which one stands for an element of a tensor of floats, and behind them 64-bit words for
whole numbers. Sums wrap around, so masks that are added by one client and subtracted by another vanish in the sum.

A mask is the key stream of ChaCha20 (RFC 8439, section 2.3; nonce 0, counter from 0) for a key that is used once, as
little-endian words. ChaCha20 because boards without instructions for AES take part: there it is four times as fast.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

_PIECE = 256 * 1024  # bytes that stay in the processor's cache; the whole at once takes five times as long
_ZEROS = bytes(_PIECE)


class Words:
    """A vector: `small` has its 32-bit words, an even number of them, and `large` its 64-bit words."""

    def __init__(self, memory: NDArray[np.uint8], small: int) -> None:
        self.memory = memory  # writable bytes, in the order of the wire: little-endian
        self.small: NDArray[np.uint32] = memory[: 4 * small].view("<u4")
        self.large: NDArray[np.uint64] = memory[4 * small :].view("<u8")

    @classmethod
    def zeros(cls, small: int, large: int) -> Self:
        """Return a vector of zeros. `small` is even."""
        return cls(np.zeros(4 * small + 8 * large, np.uint8), small)

    def add(self, other: Self) -> None:
        """Add a vector of the same form."""
        np.add(self.small, other.small, out=self.small)
        np.add(self.large, other.large, out=self.large)

    def mask(self, plus: Collection[bytes], minus: Collection[bytes] = ()) -> None:
        """Add the masks of some keys, and subtract those of others. Each key has 32 bytes, and is used for one vector.

        Holds the interpreter for 256 KiB at a time, so other threads go on.
        """
        streams = [(np.add, _stream(key)) for key in plus] + [(np.subtract, _stream(key)) for key in minus]
        stream = np.empty(_PIECE, np.uint8)
        for words in (self.small, self.large):
            count = _PIECE // words.itemsize
            for start in range(0, words.size, count):
                piece = words[start : start + count]
                mask = stream[: piece.nbytes]
                for apply, encryptor in streams:
                    encryptor.update_into(_ZEROS[: piece.nbytes], mask)
                    apply(piece, mask.view(words.dtype), out=piece)

    def checksum(self) -> int:
        """Return the sum of all words modulo 2**32. That of a sum is the sum of theirs."""
        total = int(np.sum(self.small, dtype=np.uint64)) + int(np.sum(self.large, dtype=np.uint64))
        return total % 2**32


def _stream(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
