"""The vector of a client's statistics under masks: its whole numbers in 64 bits, and behind them the checksum. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl.errors import InvalidUpdate
from fl.secure.words import Words
from fl.tensors.spec import Model


class Counts:
    """The form of the vectors of one question. numbers: of a vector (fl.column_statistics.Query)."""

    small = 0

    def __init__(self, numbers: int) -> None:
        self.large = numbers + 1

    @property
    def nbytes(self) -> int:
        """Bytes of a vector."""
        return 8 * self.large

    def encode(self, vector: Any) -> Words:
        """Return a client's numbers as a vector. Raises InvalidUpdate."""
        right = isinstance(vector, np.ndarray) and vector.dtype == np.int64 and vector.shape == (self.large - 1,)
        if not right:
            raise InvalidUpdate(f"the statistics are no vector of {self.large - 1} whole numbers of 64 bits")
        words = Words.zeros(self.small, self.large)
        words.large[:-1] = vector.view(np.uint64)
        words.large[-1] = words.checksum()
        return words

    def decode(self, start: Model, words: Words) -> NDArray[np.int64]:
        """Return the sum of the clients' numbers. Raises InvalidUpdate if it is none. start: there is no model."""
        checksum = int(words.large[-1])
        if (words.checksum() - checksum) % 2**32 != checksum % 2**32:
            raise InvalidUpdate(
                "the masked statistics have no valid sum: a client has sent other numbers than it should"
            )
        return words.large[:-1].view(np.int64)
