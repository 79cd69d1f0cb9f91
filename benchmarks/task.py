"""A measurement as plain data: the task, its messages, and where its two processes connect.

Made by questions.py and measure.py, sent to the two processes as JSON, read by works.py and the peers.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from netq.bench.plan import Plan, geometric

PIECE = 1024**2


@dataclass(frozen=True)
class Task:
    """A task for two processes.

    work:   a method of Client in works.py: one_way, echo, load, curve, exchange or sweep.
    kind:   "array": numpy arrays of bytes; "object": Python `bytes`, pickled by peers that send objects.
    size:   bytes of a message; of the largest one, in an exchange or a sweep.
    count:  measured messages, after `warm` messages that are not measured; in an exchange, those of the largest size.
    reply:  bytes of the answer to an echo; 0: the message itself is sent back.
    seconds: of a load or a curve: how long each rate is tried. Of a sweep: the time for the round trips of each size,
            and again for its messages one way.
    limit:  of a load: the p99.9 (in seconds) that a rate must not exceed.
    smallest, step, expo, together: of an exchange: see `plan`; both sides at once, or one after the other. smallest
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
        return geometric(self.smallest, self.size, 2**self.step) if self.step else [self.size]

    @property
    def plan(self) -> Plan:
        """What each side of an exchange sends, as in net-queue's own benchmark.

        round((size / each) ** expo) messages of each of `sizes`, `count` times. With step 0: `count` of `size`.
        """
        return Plan(tuple((each, round((self.size / each) ** self.expo) * self.count) for each in self.sizes()))

    @property
    def messages(self) -> int:
        """The number of messages that count, both directions together."""
        return self.plan.count * 2 if self.work == "exchange" else self.count * (1 if self.work == "one_way" else 2)

    @property
    def bytes(self) -> int:
        """The bytes of messages that count, both directions together."""
        if self.work == "exchange":
            return self.plan.nbytes * 2
        return self.count * (self.size if self.work == "one_way" else self.size + (self.reply or self.size))


@dataclass(frozen=True)
class Place:
    """The address and files of the two processes, and what they send: all that a peer is given."""

    host: str
    port: int
    folder: Path
    variant: str = ""
    kind: str = "object"
    size: int = 1
    is_bounded: bool = True  # whether `send` may wait until the other side receives
    is_server: bool = False

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"folder": str(self.folder)}

    def ready(self) -> None:
        """Say that a client may connect: the server calls it when it listens."""
        print("ready", flush=True)


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


def check(nbytes: int, count: int, size: int) -> None:
    """Raise if bytes are missing, or too many."""
    if nbytes != count * size:
        raise RuntimeError(f"{nbytes} bytes came; expected {count} messages of {size}")


def check_same(size: int, received: Any) -> None:
    """Raise if a message differs from the one of `message`. Uses little memory, because the peak is measured."""
    view = memoryview(received)
    if len(view) != size or any(bytes(view[start : start + PIECE]) != piece for start, piece in _pieces(size)):
        raise RuntimeError("the first message is not what was sent")
