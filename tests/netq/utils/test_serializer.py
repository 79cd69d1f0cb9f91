"""A pair of functions as a serialiser, `load_into`, and what `get(into=…)` checks before it takes a message."""

from __future__ import annotations

import json
import pickle
import re
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from netq.errors import BufferMismatch, NotAllowed, SerializationError, Unreadable
from netq.protocol.memory import Memory
from netq.utils.serializer import Serializer, destinations
from netq.utils.stream import BufferSerializer, BytesSerializer, PickleSerializer, Stream, StreamSerializer

ARRAYS = PickleSerializer.allow_by_name("numpy.ndarray")
SERIALIZERS = {"trusting": PickleSerializer(), "data": PickleSerializer(allow=ARRAYS)}


def received(data: Any, pieces: int = 1) -> Stream:
    whole = bytearray(bytes(PickleSerializer().dump(data)))
    step = -(-len(whole) // pieces)
    return Stream([whole[start : start + step] for start in range(0, len(whole), step)])


def of(serializer: Any) -> Serializer:
    return Serializer(serializer.dump, serializer.load)


def load(serializer: Any, stream: Stream, into: Any) -> Any:
    return of(serializer).loader(into)(stream)


# A pair of functions.


def unchanged(data: Any) -> Any:
    return data


def test_dump_may_return_any_buffer() -> None:
    own = Serializer(unchanged, bytes)
    for dumped in (b"abc", bytearray(b"abc"), memoryview(b"abc"), np.array([1, 2]), Stream([b"abc"])):
        assert bytes(own.dump(dumped)) == bytes(own.pack(dumped)) == bytes(dumped)
        assert (own.pack(dumped) is dumped) == isinstance(dumped, bytes | Stream)
    view = memoryview(b"abcdef")[::2]
    for wrong, why in (("abc", "str"), (None, "NoneType"), (7, "int"), ([b"abc"], "list"), (view, "memoryview")):
        for function in (own.dump, own.pack):
            with pytest.raises(SerializationError, match=rf"put: .*\.unchanged returned a {why}; expected bytes"):
                function(wrong)


def test_own_load_takes_a_stream_of_bytes() -> None:
    assert Serializer(bytes, json.load).load(b"[1]") == Serializer(bytes, json.load).load(Stream([b"[1]"])) == [1]
    assert bytes(of(BufferSerializer()).load(b"abc")) == b"abc"


def test_small_pickles_are_bytes() -> None:
    pair = of(PickleSerializer())
    assert type(pair.pack(5)) is bytes
    assert type(pair.pack(np.ones(5))) is type(pair.dump(5)) is Stream
    assert pair.load(pair.pack(5)) == 5
    assert pair.load == pair.load.__self__.load  # type: ignore[attr-defined]  # no function more for each message


class Upper(PickleSerializer):
    def dump(self, data: Any) -> Stream:
        return super().dump(data.upper())


class Packing:
    """A class that has nothing to do with `PickleSerializer.pack`."""

    def dump(self, data: bytes) -> bytes:
        return data

    def pack(self, data: bytes) -> bytes:
        raise AssertionError

    load = dump


def test_dump_of_a_subclass_is_called() -> None:
    pair = of(Upper())
    assert pair.load(pair.pack("abc")) == "ABC"
    assert of(Packing()).pack(b"abc") == b"abc"
    with pytest.raises(SerializationError, match=r"PickleSerializer\.load returned a int"):
        Serializer(PickleSerializer().load, bytes).pack(bytes(PickleSerializer().dump(5)))


def test_pickles_without_allow_list_run_code() -> None:
    for serializer, runs_code in ((PickleSerializer(), True), (OwnLoad(), True), (SERIALIZERS["data"], False)):
        assert of(serializer).runs_code is runs_code
    assert not Serializer(PickleSerializer().dump, json.load).runs_code


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("serializer", SERIALIZERS.values(), ids=SERIALIZERS)
def test_arrays_are_views_of_the_buffers_in_order(serializer: PickleSerializer, pieces: int) -> None:
    sent = [np.arange(100.0).reshape(4, 25), np.arange(7, dtype=np.uint8), np.asfortranarray(np.eye(3)), np.zeros(0)]
    into = [np.full_like(array, 9) for array in sent]
    loaded = load(serializer, received(("text", sent), pieces), into)[1]
    for array, copy, buffer in zip(sent, loaded, into, strict=True):
        assert np.array_equal(array, copy)
        assert array.size == 0 or np.shares_memory(copy, buffer)
        assert copy.flags.writeable


def test_any_writable_memory_takes_an_array() -> None:
    sent = np.arange(10, dtype=np.int32)
    for into in (bytearray(40), memoryview(bytearray(40)), np.zeros((2, 5), np.int32), [np.zeros(5)]):
        loaded = load(PickleSerializer(), received(sent), into)
        assert loaded.tolist() == list(range(10))
        assert np.shares_memory(loaded, np.frombuffer(into[0] if isinstance(into, list) else into, np.uint8))


def test_array_of_no_dimension_is_out_of_band() -> None:
    into = np.zeros(())
    assert load(PickleSerializer(), received(np.array(2.5)), into) == 2.5
    assert into == 2.5


@pytest.mark.parametrize(
    "data",
    [np.array([None]), np.float64(2.5), b"x" * 100, b"x" * 100_000, bytearray(100_000), 5],
    ids=["objects", "scalar", "bytes", "large bytes", "bytearray", "int"],
)
def test_in_band_data_needs_no_buffer(data: Any) -> None:
    assert np.array_equal(load(PickleSerializer(), received(data), []), data)
    with pytest.raises(BufferMismatch, match="into has 1 buffers, and the message has 0 out of band"):
        load(PickleSerializer(), received(data), bytearray(100))


def test_array_that_is_in_a_message_twice_needs_one_buffer() -> None:
    array, into = np.arange(5), np.zeros(5, np.int64)
    one, two = load(PickleSerializer(), received([array, array]), into)
    assert one is two
    assert np.shares_memory(one, into)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([8], "into has 1 buffers, and the message has 2 out of band (of 8, 16 bytes); expected as many"),
        ([8, 16, 1], "into has 3 buffers, and the message has 2 out of band (of 8, 16 bytes)"),
        ([8, 15], "into: buffer 1 of 2 has 15 bytes, and that of the message has 16; expected as many"),
        ([9, 16], "into: buffer 0 of 2 has 9 bytes, and that of the message has 8; expected as many"),
    ],
)
def test_mismatch_is_found_before_anything_is_copied(sizes: list[int], text: str) -> None:
    into = [bytearray(b"." * size) for size in sizes]
    with pytest.raises(BufferMismatch, match=re.escape(text)):
        load(PickleSerializer(), received([np.ones(1), np.ones(2)]), into)
    assert into == [b"." * size for size in sizes]


def test_mismatch_lists_few_of_many_sizes() -> None:
    with pytest.raises(BufferMismatch, match=r"has 100 out of band \(of 1, 1, 1, 1, 1, 1, 1, 1, … bytes\)"):
        load(PickleSerializer(), received([np.ones(1, np.uint8) for _ in range(100)]), bytearray(1))


def test_allow_list_holds() -> None:
    with pytest.raises(NotAllowed, match=r"uuid\.UUID"):
        load(SERIALIZERS["data"], received((np.ones(1), uuid.UUID(int=7))), bytearray(8))


def test_persistent_identifiers_hold_buffers() -> None:
    serializer = PickleSerializer(
        dump=lambda obj: pickle.PickleBuffer(obj.block) if isinstance(obj, Block) else None, load=lambda pid: Block(pid)
    )
    into = bytearray(3)
    loaded = load(serializer, Stream([bytes(serializer.dump(Block(bytearray(b"abc"))))]), into)
    assert bytes(loaded.block) == into == b"abc"
    into[0] = ord("x")
    assert bytes(loaded.block) == b"xbc"


class Block:
    def __init__(self, block: Any) -> None:
        self.block = block


def test_damaged_message_is_unreadable_at_any_length() -> None:
    whole = bytes(received(np.ones(4, np.uint8)))
    for length in range(len(whole)):
        with pytest.raises((Unreadable, BufferMismatch)):
            load(PickleSerializer(), Stream([whole[:length]]), bytearray(4))


def test_memory_of_the_message_is_free_after_the_copy() -> None:
    memory, dumped = Memory(), bytes(PickleSerializer().dump(np.ones(10**6, np.uint8)))
    view = memory.take(len(dumped))
    view[:] = dumped
    stream = Stream.of(view)
    into = np.zeros(10**6, np.uint8)
    loaded = load(PickleSerializer(), stream, into)
    assert memory.idle == 0
    del view, stream
    assert memory.idle > 10**6
    assert loaded.sum() == 10**6


@pytest.mark.parametrize("parts", [[b"abc"], [b"a", b"", b"bc"]])
def test_bytes_go_to_the_start_of_a_longer_buffer(parts: list[bytes]) -> None:
    into = bytearray(b".....")
    filled = load(BufferSerializer(), Stream(parts), into)
    assert bytes(filled) == b"abc"
    assert into == b"abc.."
    filled[0] = ord("x")
    assert into == b"xbc.."


@pytest.mark.parametrize(
    ("into", "given"), [(bytearray(2), "one buffer of 2 bytes"), ([], "0 buffers"), ([bytearray(9)] * 2, "2 buffers")]
)
def test_bytes_need_one_buffer_that_is_long_enough(into: Any, given: str) -> None:
    with pytest.raises(BufferMismatch, match=f"into has {given}; expected one buffer of 3 bytes or more"):
        load(BufferSerializer(), Stream([b"abc"]), into)


# Before a message is taken.


@pytest.mark.parametrize(
    ("into", "error", "text"),
    [
        (5, TypeError, "buffer 0 of 1: a int; expected a writable buffer"),
        ([bytearray(1), "text"], TypeError, "buffer 1 of 2: a str; expected a writable buffer"),
        (np.array(["2020-01-01"], "M8[s]"), TypeError, "buffer 0 of 1: a ndarray; expected a writable buffer"),
        (b"abc", ValueError, "buffer 0 of 1: a bytes of 3 bytes, which is read-only"),
        ([bytearray(1), np.broadcast_to(1.0, 3)], ValueError, "buffer 1 of 2: a ndarray of 24 bytes, which is read-"),
        (np.zeros(10)[::2], ValueError, "buffer 0 of 1: a ndarray of 40 bytes, which is not contiguous"),
    ],
)
def test_buffers_that_cannot_be_filled_are_refused(into: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"get: into, {re.escape(text)}"):
        of(PickleSerializer()).loader(into)


def test_destinations_are_views_of_bytes() -> None:
    array = np.zeros((2, 3), np.float64, order="F")
    (view,) = destinations(array)
    assert (view.format, view.nbytes) == ("B", 48)
    view[:8] = np.float64(2.5).tobytes()
    assert array[0, 0] == 2.5


class OwnLoad(PickleSerializer):
    """Its `load` may check what the inherited `load_into` does not know."""

    def load(self, stream: Stream | bytes) -> Any:
        return super().load(stream)


class OwnBoth(OwnLoad):
    def load_into(self, stream: Stream, buffers: Any) -> Any:
        return "own", super().load_into(stream, buffers)


class Named:
    def decode(self, stream: Stream) -> Any:
        return bytes(stream)

    def load_into(self, stream: Stream, buffers: Any) -> Any:
        return stream.readinto(buffers[0])


@pytest.mark.parametrize(
    "function",
    [BytesSerializer().load, StreamSerializer().load, OwnLoad().load, json.load, lambda stream: None, dict],
)
def test_serialiser_without_load_into_is_refused(function: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"get: into needs a serialiser with `load_into`, and .*\.load is .*; expected"):
        Serializer(bytes, function).loader(bytearray(1))


def test_own_load_into_is_called() -> None:
    assert load(OwnBoth(), received(np.ones(1)), bytearray(8)) == ("own", np.ones(1))
    assert Serializer(bytes, Named().decode).loader(bytearray(8))(Stream([b"abc"])) == 3
