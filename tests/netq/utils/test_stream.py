"""Streams and serialisers: layout, copies, hooks, allow-lists, and messages that cannot be loaded."""

from __future__ import annotations

import array
import collections
import ctypes
import fractions
import io
import itertools
import json
import os
import pickle
import random
import struct
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from netq.errors import InvalidOption, NotAllowed, SerializationError, Unreadable
from netq.utils.stream import (
    BufferSerializer,
    BytesSerializer,
    PickleSerializer,
    Stream,
    StreamSerializer,
)
from tests.netq.utils.test_large import received

nothing = PickleSerializer(allow=lambda name: False)
trusting = PickleSerializer()


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


# Stream

SPLITS = [
    [],
    [b""],
    [b"a"],
    [b"", b"ab", b""],
    [b"abc", b"d", b"efgh"],
    [b"a", b"", b"", b"bc", b"", b"d"],
]


@pytest.mark.parametrize("parts", SPLITS)
def test_slices_return_bytes_from_start_to_stop(parts: list[bytes]) -> None:
    stream, whole = Stream(parts), b"".join(parts)
    assert (len(stream), stream.nbytes, bytes(stream)) == (len(whole), len(whole), whole)
    assert stream.contiguous() == whole
    for start in range(len(whole) + 1):
        for stop in range(start, len(whole) + 1):
            assert b"".join(stream.slices(start, stop)) == whole[start:stop]


@given(st.lists(st.binary(max_size=5), max_size=8), st.data())
def test_consecutive_slices_cover_stream(parts: list[bytes], data: st.DataObject) -> None:
    stream = Stream(parts)
    size = data.draw(st.integers(1, 9))
    chunks = [b"".join(stream.slices(at, min(at + size, len(stream)))) for at in range(0, len(stream), size)]
    assert b"".join(chunks) == bytes(stream)


def test_slices_do_not_copy() -> None:
    block = bytearray(b"abcdef")
    stream = Stream([b"01", block])
    block[3] = ord("!")
    assert b"".join(stream.slices(1, 7)) == b"1abc!e"
    assert [address(view) for view in stream.slices(3, 7)] == [address(memoryview(block)) + 1]


def test_contiguous_returns_single_buffer() -> None:
    block = bytearray(b"abc")
    assert address(Stream([block]).contiguous()) == address(memoryview(block))
    joined = Stream([block, b"def"]).contiguous()
    assert bytes(joined) == b"abcdef"
    assert not joined.readonly


@pytest.mark.parametrize("buffer", [b"", b"abc"])
def test_contiguous_joins_buffers_aligned(buffer: bytes) -> None:
    for size in (0, 1, 100, 300_000):
        joined = Stream([buffer, bytes(size)]).contiguous()
        assert joined == buffer + bytes(size)
        assert not joined.nbytes or address(joined) % 64 == 0
        assert not joined.readonly


# A file


def test_stream_reads_as_file() -> None:
    """Any calls, in step with those of io.BytesIO."""
    chance = random.Random(5)
    text = b"".join(bytes(chance.randrange(97, 100) for _ in range(chance.randrange(6))) + b"\n" for _ in range(50))
    for _ in range(200):
        cuts = sorted(chance.randrange(len(text)) for _ in range(chance.randrange(9)))
        pieces = [text[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(text)])]
        stream, file = Stream(pieces), io.BytesIO(text)
        for _ in range(20):
            size = chance.randrange(-1, 40)
            match chance.randrange(5):
                case 0:
                    assert stream.read(size) == file.read(size)
                case 1:
                    assert stream.readline(size) == file.readline(size)
                case 2:
                    ours, theirs = bytearray(size + 1), bytearray(size + 1)
                    assert (stream.readinto(ours), ours) == (file.readinto(theirs), theirs)
                case 3:
                    whence = chance.randrange(3)
                    offset = chance.randrange(len(text)) if whence == 0 else -chance.randrange(file.tell() + 1)
                    assert stream.seek(offset, whence) == file.seek(offset, whence)
                case _:
                    assert stream.tell() == file.tell()
        assert stream.read() == file.read()
        assert stream.read(None) == stream.readline() == b""


def test_readline_of_long_line() -> None:
    stream = Stream([b"x" * 5000, b"y" * 5000 + b"\n", b"z"])
    assert stream.readline() == b"x" * 5000 + b"y" * 5000 + b"\n"
    assert stream.readline() == b"z"


def test_file_readers_accept_stream() -> None:
    array = np.arange(7.0)
    file = io.BytesIO()
    np.save(file, array)
    assert (np.load(Stream([file.getvalue()[:50], file.getvalue()[50:]])) == array).all()
    assert json.load(Stream([b'{"a":', b" [1]}"])) == {"a": [1]}
    assert pickle.load(Stream([pickle.dumps({"b": 2}), b"more"])) == {"b": 2}


def test_archive_is_read_from_stream() -> None:
    file = io.BytesIO()
    np.savez(file, a=np.arange(3), b=np.zeros(2))
    with np.load(Stream([file.getvalue()])) as archive:
        assert (archive["a"] == np.arange(3)).all()


def test_seek_before_start_is_refused() -> None:
    with pytest.raises(ValueError, match="seek: -1 from 0 is before the start"):
        Stream([b"abc"]).seek(-1)


def test_object_without_buffer_is_refused_by_name() -> None:
    for serializer in (BytesSerializer(), BufferSerializer()):
        name = type(serializer).__name__
        with pytest.raises(SerializationError, match=f"put: a str; {name} takes bytes, or another contiguous buffer"):
            serializer.dump("text")  # type: ignore[arg-type]


def test_hooks_must_be_callable() -> None:
    for name in ("allow", "dump", "load"):
        with pytest.raises(InvalidOption, match=rf"PickleSerializer\.{name}: .'builtins'.; expected a function"):
            PickleSerializer(**{name: ["builtins"]})  # type: ignore[arg-type]
    for wrong in (["builtins"], 3, "", uuid.UUID):
        with pytest.raises(InvalidOption, match=r'expected names, as in allow_by_name."uuid.UUID"'):
            PickleSerializer.allow_by_name(wrong)  # type: ignore[arg-type]


# Bytes


@pytest.mark.parametrize("data", [b"", b"abc", bytearray(b"abc"), memoryview(b"abcdef")[1:4]])
def test_bytes_are_sent_unchanged(data: Any) -> None:
    assert BytesSerializer().load(received(BytesSerializer().dump(data))) == bytes(data)


def test_buffer_serializer_returns_memory_of_message() -> None:
    block = bytearray(b"abc")
    view = BufferSerializer().load(Stream([block]))
    view[0] = ord("x")
    assert block == b"xbc"
    assert bytes(BufferSerializer().load(BufferSerializer().dump(b"abc"))) == b"abc"


def test_stream_serializer_takes_and_returns_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"head and body")
    with path.open("rb") as file:
        file.seek(5)
        stream = StreamSerializer().load(StreamSerializer().dump(file))
    assert (stream.read(3), stream.read()) == (b"and", b" body")


def test_bytes_serializer_does_not_copy() -> None:
    numbers = array.array("i", [1, 2, 3])
    stream = BytesSerializer().dump(numbers)  # type: ignore[arg-type]
    assert stream.nbytes == 12
    assert address(stream.buffers[0]) == numbers.buffer_info()[0]


# The layout of a pickled message

Q = struct.Struct("<Q").pack
GOLDEN: dict[str, tuple[Any, bytes]] = {
    "no buffer": (
        None,
        Q(4) + Q(0) + b"\x80\x05N.",
    ),
    "one": (
        pickle.PickleBuffer(bytearray(b"abc")),
        Q(4) + Q(1) + Q(3) + b"\x80\x05\x97." + bytes(36) + b"abc",
    ),
    "two, the second read-only": (
        (pickle.PickleBuffer(bytearray(b"abc")), pickle.PickleBuffer(b"de")),
        Q(17)
        + Q(2)
        + Q(3)
        + Q(2)
        + b"\x80\x05\x95"
        + Q(6)
        + b"\x97\x97\x98\x86\x94."
        + bytes(15)
        + b"abc"
        + bytes(61)
        + b"de",
    ),
    "64 bytes, and none": (
        [pickle.PickleBuffer(bytearray(64 * b"x")), pickle.PickleBuffer(bytearray())],
        Q(18) + Q(2) + Q(64) + Q(0) + b"\x80\x05\x95" + Q(7) + b"]\x94(\x97\x97e." + bytes(14) + 64 * b"x",
    ),
}


@pytest.mark.parametrize(("data", "expected"), GOLDEN.values(), ids=GOLDEN)
@pytest.mark.parametrize("serializer", [trusting, nothing])
def test_layout(serializer: PickleSerializer, data: Any, expected: bytes) -> None:
    stream = serializer.dump(data)
    assert bytes(stream) == expected
    assert stream.nbytes == len(expected)


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_buffers_arrive_at_multiples_of_64(parts: list[bytes]) -> None:
    message = received(trusting.dump([pickle.PickleBuffer(bytearray(part)) for part in parts]))
    views = trusting.load(message)
    assert [bytes(view) for view in views] == parts
    start = address(message.buffers[0])
    assert all((address(view) - start) % 64 == 0 for view in views if view.nbytes)
    assert not any(view.readonly for view in views)


def test_buffers_leave_and_arrive_uncopied() -> None:
    block = bytearray(b"x" * 1000)
    stream = trusting.dump({"block": pickle.PickleBuffer(block)})
    assert address(stream.buffers[1]) == address(memoryview(block))
    message = received(stream)
    view = trusting.load(message)["block"]
    view[0] = 0
    assert message.buffers[0][-1000] == 0


@pytest.mark.parametrize("last", [1, 1024, 1025])
def test_many_small_buffers_leave_joined(last: int) -> None:
    sizes = [1, 64, 0, 1024, 1025, 4096, 64] * 200 + [last]
    blocks = [bytearray([number % 251]) * size for number, size in enumerate(sizes)]
    stream = trusting.dump([pickle.PickleBuffer(block) for block in blocks])
    own = {address(memoryview(block)) for block in blocks if len(block) > 1024}
    assert own <= {address(buffer) for buffer in stream.buffers if not buffer.readonly}
    assert len(stream.buffers) < 3 * len(own) + 2
    assert all(buffer.nbytes for buffer in stream.buffers)
    assert [bytes(view) for view in trusting.load(received(stream))] == blocks


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=10,
)


@given(plain_values)
def test_builtin_values_need_no_global(data: Any) -> None:
    assert nothing.load(received(nothing.dump(data))) == data
    assert trusting.load(received(trusting.dump(data))) == data


# Persistent identifiers


class Place:
    """Travels by name."""

    def __init__(self, name: str) -> None:
        self.name = name


def test_hooks_are_called_for_each_object_and_identifier() -> None:
    serializer = PickleSerializer(
        lambda name: False,
        dump=lambda obj: ("place", obj.name) if isinstance(obj, Place) else None,
        load=lambda pid: Place(pid[1]),
    )
    home, work = serializer.load(received(serializer.dump([Place("home"), Place("work")])))
    assert (home.name, work.name) == ("home", "work")


def test_identifier_without_hook_is_unreadable() -> None:
    with_hook = PickleSerializer(dump=lambda obj: 5 if obj is None else None)
    message = received(with_hook.dump(None))
    for serializer in (trusting, nothing, with_hook):
        with pytest.raises(Unreadable):
            serializer.load(message)


def test_error_in_hook_is_cause_of_unreadable() -> None:
    serializer = PickleSerializer(dump=lambda obj: 5 if obj is None else None, load=lambda pid: {}[pid])
    with pytest.raises(Unreadable, match=r"KeyError\(5\)") as caught:
        serializer.load(received(serializer.dump(None)))
    assert isinstance(caught.value.__cause__, KeyError)


# allow


class Calls:
    """Pickles as a call of any global, by the names a hostile peer would write."""

    def __init__(self, module: str, name: str, *args: Any) -> None:
        self.pickled = self._named(module, name) + self._tuple(args) + b"R."

    @staticmethod
    def _named(module: str, name: str) -> bytes:
        return (
            b"\x80\x05" + b"".join([b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name)]) + b"\x93"
        )

    @staticmethod
    def _tuple(args: tuple[Any, ...]) -> bytes:
        return pickle.dumps(args, 5)[2:-1] if args else b")"

    @property
    def message(self) -> Stream:
        return Stream([bytearray(Q(len(self.pickled)) + Q(0) + self.pickled)])


def by_name(*names: str) -> PickleSerializer:
    return PickleSerializer(PickleSerializer.allow_by_name(*names))


@pytest.mark.parametrize(
    "name",
    ["uuid.UUID", "uuid.UUID.bytes", "uuid.uuid4"],
)
def test_module_name_allows_its_submodules(name: str) -> None:
    assert PickleSerializer.allow_by_name("uuid")(name)
    assert not PickleSerializer.allow_by_name("uui")(name)
    assert not PickleSerializer.allow_by_name("uuid.uuid")(name)
    assert not PickleSerializer.allow_by_name()(name)


def test_allowed_global_is_loaded() -> None:
    data = [uuid.UUID(int=5), collections.OrderedDict(a=1), fractions.Fraction(1, 3)]
    serializer = by_name("uuid", "collections.OrderedDict", "fractions.Fraction")
    assert serializer.load(received(serializer.dump(data))) == data
    assert trusting.load(received(trusting.dump(data))) == data


def test_arrays_need_numpy_globals() -> None:
    data = np.arange(5.0)
    with pytest.raises(NotAllowed, match=r"numpy\.ndarray"):
        nothing.load(received(trusting.dump(data)))
    serializer = by_name("numpy")
    assert np.array_equal(serializer.load(received(serializer.dump(data))), data)


HOSTILE: dict[str, tuple[Callable[[], PickleSerializer], Calls]] = {
    "os.system": (lambda: nothing, Calls("os", "system", "exit 1")),
    "as pickle writes it": (lambda: by_name("os"), Calls("posix", "system", "exit 1")),
    "reached from os": (lambda: by_name("os"), Calls("os", "system", "exit 1")),
    "eval": (lambda: by_name("uuid"), Calls("builtins", "eval", "1")),
    "os.system by numpy": (lambda: by_name("numpy"), Calls("numpy", "f2py.os.system", "exit 1")),
    "a class by a module of ours": (lambda: by_name("netq"), Calls("netq.protocol.memory", "mmap.mmap", -1, 1)),
    "a class of elsewhere": (lambda: by_name("uuid"), Calls("uuid", "Enum", "x")),
    "a module": (lambda: by_name("uuid"), Calls("uuid", "os")),
    "a module's dict": (lambda: by_name("uuid"), Calls("uuid", "__dict__.get", "os")),
    "a method of an allowed class": (lambda: by_name("uuid.UUID"), Calls("uuid", "UUID.__init__", 1)),
    "a builtin method of it": (lambda: by_name("uuid.UUID"), Calls("uuid", "UUID.__reduce_ex__", 1)),
    "its class": (lambda: by_name("uuid.UUID"), Calls("uuid", "UUID.__class__", 1)),
    "its methods' globals": (lambda: by_name("uuid.UUID"), Calls("uuid", "UUID.__init__.__globals__")),
    "a name that has it as prefix": (lambda: by_name("uuid.UUI"), Calls("uuid", "UUID", "0" * 32)),
}


@pytest.mark.parametrize(("serializer", "call"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_are_refused(serializer: Callable[[], PickleSerializer], call: Calls) -> None:
    with pytest.raises(NotAllowed, match="which `allow` refuses"):
        serializer().load(call.message)


@pytest.mark.parametrize("name", ["x\n12:00 CRITICAL all is lost", "A" * 255], ids=["lines", "long"])
def test_name_from_peer_is_shortened_to_one_line(name: str) -> None:
    with pytest.raises(NotAllowed) as caught:
        nothing.load(Calls(name, "y").message)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_hostile_pickles_would_run_if_allowed() -> None:
    assert trusting.load(Calls("builtins", "eval", "1 + 1").message) == 2
    assert trusting.load(Calls("uuid", "UUID", "0" * 32).message) == uuid.UUID(int=0)
    assert by_name("uuid.UUID").load(Calls("uuid", "UUID", "0" * 32).message) == uuid.UUID(int=0)


def test_objects_reachable_in_module_are_refused() -> None:
    for data in (os.system, eval, Place("x")):
        with pytest.raises(NotAllowed):
            nothing.load(received(trusting.dump(data)))
        with pytest.raises(SerializationError, match="which `load` of this PickleSerializer would refuse"):
            nothing.dump(data)


def test_allowed_name_that_does_not_exist_is_unreadable() -> None:
    for call in (Calls("uuid", "Nothing"), Calls("uuid.nothing", "UUID")):
        with pytest.raises(Unreadable) as caught:
            by_name("uuid").load(call.message)
        assert not isinstance(caught.value, NotAllowed)


# Damage

WHOLE = [
    nothing.dump({"w": [1, 2.5, "text", b"bytes"] * 3}),
    nothing.dump([pickle.PickleBuffer(bytearray(100)), pickle.PickleBuffer(bytearray(7)), "x" * 300]),
    nothing.dump([pickle.PickleBuffer(bytearray(70)), pickle.PickleBuffer(bytearray())]),
]


@pytest.mark.parametrize("serializer", [nothing, trusting])
@pytest.mark.parametrize("stream", WHOLE)
def test_truncated_message_is_unreadable(serializer: PickleSerializer, stream: Stream) -> None:
    whole = bytes(stream)
    serializer.load(Stream([whole]))
    for size in range(len(whole)):
        with pytest.raises(Unreadable):
            serializer.load(Stream([whole[:size]]))


@pytest.mark.parametrize("counts", [(2**64 - 1, 0), (0, 2**64 - 1), (2**64 - 1, 2**64 - 1), (4, 2**60), (5, 0)])
def test_excessive_counts_are_unreadable(counts: tuple[int, int]) -> None:
    with pytest.raises(Unreadable, match="announces"):
        nothing.load(Stream([Q(counts[0]) + Q(counts[1]) + b"\x80\x05N."]))


@pytest.mark.parametrize("size", [4, 2**63, 2**64 - 1])
def test_excessive_buffer_is_unreadable(size: int) -> None:
    with pytest.raises(Unreadable, match=f"announces a buffer of {size}"):
        nothing.load(Stream([Q(4) + Q(1) + Q(size) + b"\x80\x05\x97." + bytes(36) + b"abc"]))


# Left out: the opcodes PUT and LONG_BINPUT, with which a few bytes make pickle take memory without bound.
opcodes = st.binary(max_size=40).map(lambda data: data.translate(None, b"pr"))


def only_unreadable(data: bytes) -> None:
    try:
        nothing.load(Stream([data]))
    except Unreadable:
        return


@given(st.binary(max_size=64).map(lambda data: data.translate(None, b"pr")))
@example(Q(0) + Q(0))
def test_random_bytes_load_or_are_unreadable(data: bytes) -> None:
    only_unreadable(data)


def test_buffers_of_any_item_type_count_as_bytes() -> None:
    stream = Stream([memoryview(array.array("d", [1.0, 2.0, 3.0])), memoryview(bytes(range(12))).cast("B", (3, 4))])
    assert (stream.nbytes, len(stream), [len(buffer) for buffer in stream.buffers]) == (36, 36, [24, 12])
    assert b"".join(stream.slices(20, 30)) == bytes(stream)[20:30]
    with pytest.raises(BufferError):
        Stream([memoryview(bytes(8))[::2]])


@given(opcodes)
@example(b"N0.")
@example(b"(d(N.")
@example(b"cos\nsystem\n(tR.")
@example(b"\x97.")
@example(b"Ix\n.")
@example(b"I" + 5000 * b"9" + b"\n.")
def test_random_pickles_load_or_are_unreadable(pickled: bytes) -> None:
    only_unreadable(Q(len(pickled)) + Q(0) + pickled)


@given(st.sampled_from(WHOLE), st.data())
def test_flipped_byte_loads_or_is_unreadable(stream: Stream, data: st.DataObject) -> None:
    damaged = bytearray(bytes(stream))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] = data.draw(st.integers(0, 255).filter(lambda value: value not in b"pr"))
    only_unreadable(bytes(damaged))
