"""Fuzz target: fl's messages. Only documented errors; what loads is what is sent again."""

from __future__ import annotations

import contextlib
import struct

from fl.envelope import ENVELOPES
from fl.messages import MESSAGES
from fl.tensors.serialization import messages
from netq.errors import SerializationError, Unreadable
from netq.utils.stream import Stream
from tests.fl.tensors.test_json_format import INVALID

SHORT = 2000  # bytes of a seed
SERIALIZER = messages()


def _message(text: bytes, *buffers: bytes) -> bytes:
    head = struct.pack(f"<{2 + len(buffers)}Q", len(text), len(buffers), *map(len, buffers)) + text
    return head + b"".join([bytes(-len(head) % 64) + buffer for buffer in buffers[:1]])


SEEDS = [
    _message(b'{"type":"Reply","job":[1,2,"train"],"content":"no data"}'),
    _message(
        b'{"type":"Reply","job":[1,2,"train"],"content":{"type":"Update","model":{"w":{"$array":[0,"<f4",[2]]}},'
        b'"num_examples":5,"metrics":{"loss":0.5},"extra":{}}}',
        bytes(8),
    ),
    _message(
        b'{"type":"Reply","job":[1,2,"train"],"content":{"type":"Update","model":{"w":{"packed":["float32",[2],"int8",2,'
        b'false,{"$array":[0,"|u1",[6]]}]}},"num_examples":5}}',
        bytes(6),
    ),
    _message(b'{"type":"Reply","job":[1,2,"train"],"content":{"type":"Skip","reason":"no data"}}'),
    _message(
        b'{"type":"Reply","job":[1,2,"evaluate"],"content":{"type":"Report","num_examples":5,"metrics":{"c":{"sum":[[1,2]]},'
        b'"auc":{"$float":"nan"},"r":{"$array":[0,"<f8",[1]]}}}}',
        bytes(8),
    ),
    _message(
        b'{"type":"Task","job":[1,2,"train"],"model":{},"config":{"a":[{"$float":"nan"}]},"unasked":5,"counted":0}'
    ),
    *[bytes(message) for message in INVALID.values() if message.nbytes < SHORT],
]


def run(content: bytes) -> bool:
    """Load a message in each way. Returns whether it is JSON and buffers."""
    for load in (MESSAGES.load, ENVELOPES.load):
        with contextlib.suppress(Unreadable):
            load(Stream([bytearray(content)]))
    try:
        values = SERIALIZER.load(Stream([bytearray(content)]))
    except Unreadable:
        return False
    try:
        again = SERIALIZER.load(Stream([bytearray(bytes(SERIALIZER.dump(values)))]))
    except SerializationError:  # deeper than what is sent, or a longer number
        return True
    assert repr(again) == repr(values)
    return True
