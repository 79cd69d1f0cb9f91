"""A measurement as plain data: the task, its messages, and where its two processes connect.

Made by benchmarks/questions.py and measure.py, sent to the two processes as JSON, read by blocking.py, awaiting.py and
the peers. Imports only the standard library and numpy, because another version of Python may run it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ACK = b"."  # sent when everything has arrived
PIECE = 1024**2


@dataclass(frozen=True)
class Task:
    """A task for two processes.

    work:   one_way, echo, round_trip, load, curve or exchange: a pair of functions in blocking.py, most also in
            awaiting.py; or sweep, in sweep.py.
    kind:   "array": numpy arrays of bytes; "object": Python `bytes`, pickled by peers that send objects.
    size:   bytes of a message; of the largest one, in an exchange or a sweep.
    count:  measured messages, after `warm` messages that are not measured; in an exchange, those of the largest size.
    reply:  bytes of the answer in a round trip; 0: `size`.
    seconds: of a load or a curve: how long each rate is tried. Of a sweep: the time for the round trips of each size,
            and again for its messages one way.
    limit:  of a load: the p99.9 (in seconds) that a rate must not exceed.
    smallest, step, expo, together: of an exchange: see `mixture`; both sides at once, or one after the other. smallest
            and step also of a sweep: see `sizes`.
    """

    work: str
    kind: str
    size: int
    count: int
    warm: int = 0
    reply: int = 0
    seconds: float = 1.0
    limit: float = 0.005
    smallest: int = 0
    step: int = 0
    expo: float = 1.0
    together: bool = False

    def sizes(self) -> list[int]:
        """Return `smallest`, and each further size 2**step times the one before, up to `size`."""
        sizes = [self.smallest]
        while sizes[-1] << self.step <= self.size:
            sizes.append(sizes[-1] << self.step)
        return sizes

    def mixture(self) -> list[int]:
        """Return the sizes of an exchange, shuffled, the same on both sides.

        The mixture of net-queue's own benchmark: powers of two from `smallest` to `size`, in steps of 2**step;
        round((size / power) ** expo) messages of each. With step 0: `count` messages of `size`.
        """
        if not self.step:
            return [self.size] * self.count
        sizes: list[int] = []
        for power in self.sizes():
            sizes += [power] * (round((self.size / power) ** self.expo) * self.count)
        random.Random(0).shuffle(sizes)
        return sizes

    @property
    def messages(self) -> int:
        """The number of messages that count, both directions together."""
        return len(self.mixture()) * 2 if self.work == "exchange" else self.count * (1 if self.work == "one_way" else 2)

    @property
    def bytes(self) -> int:
        """The bytes of messages that count, both directions together."""
        if self.work == "exchange":
            return sum(self.mixture()) * 2
        return self.count * (self.size if self.work == "one_way" else self.size + (self.reply or self.size))


@dataclass(frozen=True)
class Place:
    """The address and files of the two processes, and what they send: all arguments of a peer."""

    host: str
    port: int
    folder: Path
    variant: str = ""
    work: str = ""
    kind: str = "object"
    size: int = 1

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"folder": str(self.folder)}


def message(kind: str, size: int) -> Any:
    """Return random bytes, the same for the same size. Every page is written, so none is the shared zero page."""
    data = bytearray(size)
    for start, piece in _pieces(size):
        data[start : start + len(piece)] = piece
    return np.frombuffer(data, np.uint8) if kind == "array" else bytes(data)


def _pieces(size: int) -> Iterator[tuple[int, bytes]]:
    numbers = random.Random(size)
    for start in range(0, size, PIECE):
        yield start, numbers.randbytes(min(PIECE, size - start))


def check(received: int, nbytes: int, count: int, expected: int) -> None:
    """Raise if messages are missing."""
    if (received, nbytes) != (count, expected):
        raise RuntimeError(f"{received} messages of {nbytes} bytes came; expected {count} of {expected}")


def check_same(size: int, received: Any) -> None:
    """Raise if the first message differs from the one sent. Uses little memory, because the peak is measured."""
    view = memoryview(received)
    if len(view) != size or any(bytes(view[start : start + PIECE]) != piece for start, piece in _pieces(size)):
        raise RuntimeError("the first message is not what was sent")
