"""Fuzz target: messages of MsgpackSerializer. Only documented errors; what loads is what is sent again."""

from __future__ import annotations

import pickle
import re

import numpy as np

from netq.errors import Unreadable
from netq.utils.msgpack import MsgpackSerializer
from netq.utils.stream import Stream

SERIALIZER = MsgpackSerializer()

SEEDS = [
    bytes(SERIALIZER.dump(value))
    for value in (
        {"a": [1, -1, 2.5, None, True], "b": b"bytes", 3: "text"},
        [np.arange(3, dtype="<f4"), np.zeros((2, 2), "|b1"), pickle.PickleBuffer(b"blob")],
    )
]


def run(content: bytes) -> bool:
    """Load a message, and send its values again. Returns whether it loads."""
    try:
        values = SERIALIZER.load(Stream([bytearray(content)]))
    except Unreadable:
        return False
    again = SERIALIZER.load(Stream([bytearray(bytes(SERIALIZER.dump(values)))]))
    assert shown(again) == shown(values)
    return True


def shown(values: object) -> str:
    """Return values as text, without the addresses of buffers."""
    return re.sub(r"PickleBuffer object at \w+", "PickleBuffer", repr(values))
