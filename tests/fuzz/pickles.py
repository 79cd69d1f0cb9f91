"""Fuzz target: pickles loaded with an allow-list. Only documented errors; what loads is what pickle itself loads."""

from __future__ import annotations

import contextlib
import pickle

from netq.errors import Unreadable
from netq.utils.stream import PickleSerializer, Stream
from tests.attacks import classes
from tests.attacks.pickles import PAYLOADS, Payload

ALLOWED = ("builtins", "collections", "datetime", "decimal", "fractions", "ipaddress", "numpy", "uuid")
OWN = [f"{classes.__name__}.{kind.__name__}" for kind in (classes.Reduced, classes.Restored, classes.Inherited)]
SERIALIZER = PickleSerializer(PickleSerializer.allow_by_name(classes.__name__, *OWN, "netq.errors", *ALLOWED))
SHORT = 2000  # bytes of a seed

SEEDS = [
    *[pickle.dumps(value, 5) for value in ([1, {"a": (2.5, b"x")}], {1, None}, classes.Point(1, 2), classes.Failed(3))],
    b"\x80\x05\x8c\x15tests.attacks.classes\x8c\x07Slotted\x93)\x81N}\x86b.",  # without its field
    *[payload.proto + payload.opcodes for payload in PAYLOADS.values() if len(payload.opcodes) < SHORT],
]


def pickled(content: bytes) -> Stream:
    """Return the message of a pickle."""
    return Stream([Payload(content, proto=b"").message])


def run(content: bytes) -> bool:
    """Load a pickle, and compare with Python's own unpickler. Returns whether it loads."""
    try:
        there = SERIALIZER.load(pickled(content))
    except Unreadable:
        return False
    with contextlib.suppress(AttributeError):  # a field or a `__dict__` that is missing: the constructor has a default
        expected = pickle.loads(content)
        shown = repr(expected)
        assert (type(there), repr(there)) == (type(expected), shown)
    return True
