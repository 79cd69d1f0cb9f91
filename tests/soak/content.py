"""What the messages of a run hold: who they are, and bytes that tell whether they are the right ones. Pure.

Made by whoever puts, judged by whoever takes (tests/soak/life.py). The bytes of a message are a part of one table,
from a place that its key decides, so that nothing has to be kept to know them again.
"""

from __future__ import annotations

import math
import pickle
import random
import zlib
from typing import Any

from tests.soak.history import Key

LARGEST = 4 * 1024**2
LANES = 4
_OUT_OF_BAND = 4096  # bytes from which they travel beside the pickle, uncopied
_TABLE = random.Random(0).randbytes(2 * LARGEST)
_SIZES = [(1, 1024), (1024, 64 * 1024), (64 * 1024, 512 * 1024), (512 * 1024, LARGEST)]
_OFTEN = [90.0, 8.0, 1.8, 0.2]


def size(rng: random.Random) -> int:
    """Return how many bytes the next message has: mostly few."""
    low, high = rng.choices(_SIZES, _OFTEN)[0]
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def message(key: Key, size: int) -> Any:
    """Return what to put."""
    data = _bytes(key, size)
    return tuple(key), pickle.PickleBuffer(data) if size >= _OUT_OF_BAND else bytes(data)


def judge(data: Any) -> tuple[Key, int, str]:
    """Return the key and the size of what was taken, and what is wrong with it, if something is."""
    (client, life, way, lane, number), got = data
    key, size = Key(client, life, way, lane, number), len(got)
    right = size <= LARGEST and zlib.crc32(got) == zlib.crc32(_bytes(key, size))
    return key, size, "" if right else "other bytes than were put"


def _bytes(key: Key, size: int) -> memoryview:
    start = zlib.crc32(repr(tuple(key)).encode()) % (LARGEST + 1)
    return memoryview(_TABLE)[start : start + size]
