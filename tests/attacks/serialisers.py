"""Hostile messages for the serialisers with checks: chosen hashes, and one buffer that is looked at many times.

    python -m tests.attacks.serialisers

prints for each its bytes, the error or "loaded", seconds, MiB, and the longest time in milliseconds for which the
interpreter's lock was held.
"""

from __future__ import annotations

import enum
import json
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fl.tensors.serialization import messages, serialization
from fl.tensors.storage import STORAGE
from netq.errors import Unreadable
from netq.utils.msgpack import ARRAY, MsgpackSerializer
from netq.utils.stream import PickleSerializer, Stream, layout
from tests.attacks.pickles import Payload, name, text

MIB = 2**20
SHAPES = 8000
BOOLS = 200_000  # bytes of an array of bools
REFERENCES = 2000
_PRIMES = 11400714785074694791, 14029467366897019727, 2870177450012600261  # of CPython's hash of a tuple
_DIMS = 19


class Arrays(msgspec.Struct):
    """What a server takes that does not trust its clients."""

    a: list[np.ndarray]


Rights = enum.IntFlag("Rights", {f"BIT{bit}": 1 << bit for bit in range(60)})  # type: ignore[misc]


class Attack(NamedTuple):
    """A message, who loads it, and what comes of it: a part of the error, or None."""

    load: Callable[[Stream], Any]
    make: Callable[[], Stream]
    error: str | None


def shapes(count: int) -> list[tuple[int, ...]]:
    """Return shapes of no elements whose tuples have one hash: the last number is solved for."""
    p1, p2, p5 = _PRIMES
    inverse = np.array([pow(p1, -1, 2**64)], "u8")  # arrays: a scalar would warn of the overflow
    number = np.arange(2**_DIMS, dtype="u8")
    rest = (number[:, None] >> np.arange(_DIMS, dtype="u8")) & np.uint64(1)
    hashed = np.full(2**_DIMS, p5, "u8")
    for column in (np.zeros_like(number), *rest.T):
        hashed = hashed + column * np.uint64(p2)
        hashed = ((hashed << np.uint64(31)) | (hashed >> np.uint64(33))) * np.uint64(p1)
    wanted = np.array([12345678901234567], "u8") * inverse
    wanted = (wanted >> np.uint64(31)) | (wanted << np.uint64(33))
    last = (wanted - hashed) * np.uint64(pow(p2, -1, 2**64))
    found = np.flatnonzero(last < 2**61 - 2)[:count]
    made = [(0, *map(int, rest[index]), int(last[index])) for index in found]
    assert len(made) == count
    assert len({hash(shape) for shape in made}) == 1
    return made


def whole(head: bytes, *buffers: bytes) -> Stream:
    return Stream([bytearray(b"".join(layout([head], [memoryview(buffer) for buffer in buffers])))])


def json_shapes() -> Stream:
    return whole(json.dumps([{"$array": [0, "|u1", shape]} for shape in shapes(SHAPES)]).encode(), b"")


def pickled_shapes() -> Stream:
    module, _, kind = STORAGE.rpartition(".")
    storage = name(module, kind) + b"\x97\x85R\x94"
    made = b"\x80\x05](" + storage
    for shape in shapes(SHAPES):
        numbers = b"".join([b"\x8a\x09" + number.to_bytes(9, "little") for number in shape])
        made += b"(" + text("numpy") + b"h\x00" + text("|u1") + b"(" + numbers + b"tN\x89tQ"
    return whole(made + b"e.", b"")


def msgpack_bools(references: int, size: int) -> Callable[[], Stream]:
    def make() -> Stream:
        array = msgspec.msgpack.Ext(ARRAY, msgspec.msgpack.encode((0, "|b1", (size,))))
        return whole(msgspec.msgpack.encode({"a": [array] * references}), bytes(size))

    return make


def pickled_bools() -> Stream:
    """One buffer in a tuple of arguments, which many arrays fetch from the memo."""
    size = BOOLS.to_bytes(4, "little")
    function = name("netq.utils.forms", "array") + b"\x94"
    args = b"(" + b"\x97" + text("|b1") + b"J" + size + b"\x85Nt\x94"
    return Stream([Payload(b"](" + function + args + b"R" + b"h\x00h\x01R" * REFERENCES + b"e.", (BOOLS,)).message])


def bools_of_two() -> Stream:
    return PickleSerializer().dump(np.full(10, 0x20, np.uint8).view(np.bool_))


def flags() -> Stream:
    """Combinations whose numbers are looked for in the same places of a table."""
    values = [number << 20 | number for number in range(1, 20_000)]
    call = b"".join([b"h\x00\x8a\x08" + struct.pack("<q", value) + b"\x85R" for value in values])
    return whole(b"\x80\x05](" + name(__name__, "Rights") + b"\x94" + call[2:] + b"e.")


_NUMPY = PickleSerializer(PickleSerializer.allow_by_name("numpy"))
_FLAGS = PickleSerializer(PickleSerializer.allow_by_name(f"{Rights.__module__}.Rights"))

ATTACKS = {
    "shapes of one hash, fl's messages": Attack(messages().load, json_shapes, None),
    "shapes of one hash, fl.serialization": Attack(serialization().load, pickled_shapes, None),
    "one buffer of bools, 2,000 arrays, msgpack": Attack(
        MsgpackSerializer(Arrays).load, msgpack_bools(REFERENCES, BOOLS), None
    ),
    "100 MB of bools, msgpack": Attack(MsgpackSerializer(Arrays).load, msgpack_bools(1, 100_000_000), None),
    "one buffer of bools, 2,000 arrays, pickle": Attack(_NUMPY.load, pickled_bools, "uses the bytes of an array"),
    "bools of 0x20, pickle": Attack(_NUMPY.load, bools_of_two, "neither 0 nor 1"),
    "20,000 combinations of flags": Attack(_FLAGS.load, flags, "combinations"),
}


class Cost(NamedTuple):
    """What loading a message has led to, and taken."""

    found: str
    seconds: float  # of CPU
    mib: float
    held: float  # milliseconds


def measure(attack: Attack) -> Cost:
    """Load a message, while a thread notices how long it does not run."""
    stream, done, gaps = attack.make(), threading.Event(), [0.0]

    def tick() -> None:
        last = time.perf_counter()
        while not done.wait(0.001):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is resident
    before, start = _peak(), time.thread_time()
    try:
        attack.load(stream)
        found = "loaded"
    except Unreadable as error:
        found = str(error)
    seconds = time.thread_time() - start
    peak = _peak()
    done.set()
    thread.join()
    return Cost(found, seconds, (peak - before) / 1024, max(gaps) * 1000)


def _peak() -> int:
    """Return the peak of resident memory, in KiB."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def main() -> None:
    print("| attack | bytes | found | s | MiB | lock held, ms |\n|---|---|---|---|---|---|")
    for title, attack in ATTACKS.items():
        cost = measure(attack)
        nbytes = attack.make().nbytes
        print(f"| {title} | {nbytes} | {cost.found:.90} | {cost.seconds:.3f} | {cost.mib:.1f} | {cost.held:.0f} |")


if __name__ == "__main__":
    from tests.attacks import serialisers  # Rights is a class of this module

    serialisers.main()
