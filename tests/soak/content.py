"""The content of the messages of a run: their key, and bytes that can be checked. Pure.

The sender makes it, and the receiver checks it (tests/soak/life.py). The bytes of a message are a part of one table.
The key determines the position there, so nothing has to be stored to check them.
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
_OUT_OF_BAND = 4096  # bytes: from here on a message is sent out of band, without a copy
_TABLE = random.Random(0).randbytes(2 * LARGEST)
_SIZES = [(1, 1024), (1024, 64 * 1024), (64 * 1024, 512 * 1024), (512 * 1024, LARGEST)]
_PROBABILITY = [90.0, 8.0, 1.8, 0.2]


def size(rng: random.Random) -> int:
    """Return the size of the next message; most are small."""
    low, high = rng.choices(_SIZES, _PROBABILITY)[0]
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def message(key: Key, size: int) -> Any:
    """Return the data of a message."""
    data = _bytes(key, size)
    return tuple(key), pickle.PickleBuffer(data) if size >= _OUT_OF_BAND else bytes(data)


def judge(data: Any) -> tuple[Key, int, str]:
    """Return the key and the size of received data, and an error text, "" if it is right."""
    (client, life, way, lane, number), got = data
    key, size = Key(client, life, way, lane, number), len(got)
    right = size <= LARGEST and zlib.crc32(got) == zlib.crc32(_bytes(key, size))
    return key, size, "" if right else "other bytes than were put"


def _bytes(key: Key, size: int) -> memoryview:
    start = zlib.crc32(repr(tuple(key)).encode()) % (LARGEST + 1)
    return memoryview(_TABLE)[start : start + size]
