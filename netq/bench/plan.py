"""Which messages are sent: their sizes, the number of each, and their order. Also sizes in text: "2KiB". Pure.

Both sides make the same plan from the same few numbers, so only these numbers are sent.
"""

from __future__ import annotations

import itertools
import random
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

MOST_MESSAGES = 50_000_000  # in one plan: its order takes up to a byte a message
MOST_SIZES = 64  # in one plan
LARGEST = 2**40  # bytes of a message; netq's own default limit

_BINARY = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_UNITS = {
    "": 1,
    "B": 1,
    **{name.upper(): unit for name, unit in _BINARY.items()},
    **{name[0]: unit for name, unit in _BINARY.items()},
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
_SIZE = re.compile(r"([0-9]+(?:_[0-9]+)*) ?([A-Za-z]*)")


def parse_size(text: str) -> int:
    """Return the bytes of "64", "4_000", "2KiB", "128MiB" (2^10, 2^20 …) or "100MB" (10^6). Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None or not 1 <= (size := int(found[1]) * unit) <= LARGEST:
        raise ValueError(f"{text!r}; expected a size from 1 byte to 1TiB, as in 64, 2KiB, 128MiB")
    return size


def format_size(size: int) -> str:
    """Return a size as `parse_size` takes it, in the largest unit that divides it."""
    for name, unit in _BINARY.items():
        if size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size}B"


def about(size: int) -> str:
    """Return a size rounded for people, as in "1.5GiB"."""
    name, unit = next((pair for pair in _BINARY.items() if size >= pair[1]), ("B", 1))
    return f"{size / unit:.1f}{name}"


@dataclass(frozen=True)
class Plan:
    """What one side sends. `pairs` are (size in bytes, number of messages). Several sizes are shuffled by `seed`."""

    pairs: tuple[tuple[int, int], ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.pairs) <= MOST_SIZES:
            raise ValueError(f"{len(self.pairs)} sizes; expected 1 to {MOST_SIZES}")
        if any(not 1 <= size <= LARGEST or count < 1 for size, count in self.pairs):
            raise ValueError(f"{self.pairs}; expected sizes of 1 byte to 1TiB, and 1 message or more of each")
        if self.count > MOST_MESSAGES:
            raise ValueError(f"{self.count:,} messages; expected {MOST_MESSAGES:,} at most")

    @property
    def count(self) -> int:
        """The number of messages."""
        return sum(count for _, count in self.pairs)

    @property
    def nbytes(self) -> int:
        """The bytes of all messages."""
        return sum(size * count for size, count in self.pairs)

    @property
    def largest(self) -> int:
        """The size of the largest message."""
        return max(size for size, _ in self.pairs)

    def order(self) -> Iterator[int]:
        """Return, for each message, the index of its pair. Takes up to a byte of memory a message."""
        if len(self.pairs) == 1:
            return itertools.repeat(0, self.count)
        indexes = array("B")
        for index, (_, count) in enumerate(self.pairs):
            indexes.extend(itertools.repeat(index, count))
        random.Random(self.seed).shuffle(indexes)
        return iter(indexes)


def powers(smallest: int, largest: int, step: int, expo: float, reps: int, seed: int) -> Plan:
    """Return the plan of `iops`: sizes 2^smallest … 2^largest, in steps of the exponent; step 0: 2^largest alone.

    There are round((2^largest / 2^i) ** expo) messages of 2^i bytes, times `reps`.
    """
    if smallest > largest:
        raise ValueError(f"--min-size {smallest} is above --max-size {largest}; both are exponents of 2")
    exponents = range(smallest, largest + 1, step) if step else [largest]
    return Plan(tuple((2**i, reps * round(2 ** ((largest - i) * expo))) for i in exponents), seed)


def geometric(smallest: int, largest: int, step: int) -> list[int]:
    """Return the sizes of `sweep`: the smallest, each `step` times the one before, and at last the largest itself."""
    sizes = itertools.takewhile(lambda size: size < largest, (smallest * step**i for i in itertools.count()))
    return [*sizes, largest]
