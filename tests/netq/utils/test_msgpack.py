"""MsgpackSerializer: values, types and arrays there and back; what it refuses; damaged and hostile messages."""

from __future__ import annotations

import ctypes
import datetime
import pickle
import struct
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netq import SerializationOptions
from netq.errors import InvalidOption, SerializationError, Unreadable
from netq.testing.fixtures import LIMIT, Communicators
from netq.utils import msgpack
from netq.utils.msgpack import MsgpackSerializer
from netq.utils.stream import Stream, layout
from tests.wires import NewWire

anything = MsgpackSerializer()
encode = msgspec.msgpack.encode


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


@dataclass
class Update:
    round: int
    weights: dict[str, np.ndarray]
    blob: pickle.PickleBuffer
    points: list[Point]


class Named(TypedDict):
    name: str
    sizes: tuple[int, int]


def received(dumped: Stream | bytes) -> Stream:
    """What a peer gets: one writable block."""
    return Stream([bytearray(bytes(dumped))])


def message(head: bytes, *buffers: bytes) -> Stream:
    return Stream([bytearray(b"".join(layout([head], [memoryview(buffer) for buffer in buffers])))])


def array(*fields: Any) -> bytes:
    return encode(msgspec.msgpack.Ext(msgpack.ARRAY, encode(fields)))


def address(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


# There and back


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(2**63),
        2**64 - 1,
        0.1,
        "grüß dich",
        b"\0\xff",
        [],
        [1, [2.5, ["x"]]],
        {"a": {"b": None}, 3: b"c"},
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC),
    ],
)
def test_plain_values_arrive_equal(value: Any) -> None:
    dumped = anything.dump(value)
    assert type(dumped) is bytes
    for stream in (Stream([dumped]), Stream([dumped[:7], dumped[7:]])):
        there = anything.load(stream)
        assert (type(there), there) == (type(value), value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.slow
@given(VALUES)
def test_any_plain_value_arrives_equal(value: Any) -> None:
    assert anything.load(received(anything.dump(value))) == value


@pytest.mark.parametrize("code", sorted(msgpack.DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 0, 3), (2, 3, 4)])
def test_arrays_arrive_with_dtype_and_shape(code: str, shape: tuple[int, ...]) -> None:
    sent = np.arange(np.prod(shape), dtype=np.int8).reshape(shape).astype(code)
    there = anything.load(received(anything.dump({"a": sent})))["a"]
    assert (there.dtype, there.shape) == (sent.dtype, shape)
    assert (there == sent).all()


def test_arrays_in_other_orders_are_copied() -> None:
    sent = np.arange(24).reshape(2, 3, 4)
    views = [sent.T, sent[:, ::2], sent[::-1], np.broadcast_to(sent[0], (5, 3, 4))]
    for view, there in zip(views, anything.load(received(anything.dump(views))), strict=True):
        assert (there == view).all()
        assert there.flags.c_contiguous


def test_numpy_scalars_become_numbers() -> None:
    sent = [np.float64(0.5), np.float32(0.5), np.int64(-3), np.uint8(3), np.bool_(True)]
    there = anything.load(received(anything.dump(sent)))
    assert [(type(value), value) for value in there] == [(float, 0.5), (float, 0.5), (int, -3), (int, 3), (bool, True)]


def test_arrays_are_sent_from_their_own_memory() -> None:
    sent, blob = np.arange(100, dtype=">f4").reshape(4, 25), bytearray(b"blob")
    dumped = anything.dump([sent, pickle.PickleBuffer(blob)])
    assert isinstance(dumped, Stream)
    addresses = [address(buffer) for buffer in dumped.buffers if buffer.nbytes]
    assert sent.__array_interface__["data"][0] in addresses
    assert ctypes.addressof(ctypes.c_char.from_buffer(blob)) in addresses


def test_loaded_arrays_are_views_of_the_message() -> None:
    stream = Stream([Stream([bytes(anything.dump([np.arange(1000), pickle.PickleBuffer(b"blob")]))]).contiguous()])
    there, buffer = anything.load(stream)
    blob = memoryview(buffer)
    start = address(stream.buffers[0])
    assert start <= there.__array_interface__["data"][0] < start + stream.nbytes
    assert start <= address(blob) < start + stream.nbytes
    assert there.__array_interface__["data"][0] % 64 == address(blob) % 64 == 0
    there[0] = blob[0] = 7
    assert anything.load(stream)[0][0] == memoryview(anything.load(stream)[1])[0] == 7


def test_arrays_of_read_only_message_are_writable() -> None:
    there = anything.load(Stream([bytes(anything.dump(np.zeros(3)))]))
    there += 1
    assert there.tolist() == [1, 1, 1]


def test_types_of_messages_arrive_as_instances() -> None:
    sent = Update(3, {"w": np.ones((2, 2), np.float32)}, pickle.PickleBuffer(b"xyz"), [Point(1), Point(2, 0.5)])
    there = MsgpackSerializer(Update).load(received(MsgpackSerializer(Update).dump(sent)))
    assert type(there) is Update
    assert (there.round, there.points) == (3, sent.points)
    assert (there.weights["w"] == 1).all()
    assert (type(there.blob), bytes(there.blob)) == (pickle.PickleBuffer, b"xyz")
    named: Named = {"name": "a", "sizes": (1, 2)}
    assert MsgpackSerializer(Named).load(received(MsgpackSerializer(Named).dump(named))) == named


# Refused


@pytest.mark.parametrize(
    ("value", "place", "kind"),
    [
        (object(), "data", "builtins.object"),
        ({"a": [1, 2j]}, "data['a'][1]", "builtins.complex"),
        ([{"w": np.array([object()])}], "data[0]['w']", "numpy.ndarray of dtype object"),
        ([np.zeros(2, "M8[s]")], "data[0]", "numpy.ndarray of dtype datetime64[s]"),
        ([np.zeros(2, "i4,f4")], "data[0]", "numpy.ndarray of dtype [('f0', '<i4'), ('f1', '<f4')]"),
        ((np.ma.zeros(3),), "data[0]", "numpy.ma.MaskedArray of dtype float64"),
        (np.complex64(1), "data", "numpy.complex64 of dtype complex64"),
        (Update(1, {"w": range(3)}, pickle.PickleBuffer(b""), []), "data.weights['w']", "builtins.range"),  # type: ignore[dict-item]
        ([Point(print)], "data[0].x", "builtins.builtin_function_or_method"),  # type: ignore[arg-type]
        ({1j: 2}, "data", "builtins.complex"),  # a key has the place of its dict
    ],
)
def test_put_refuses_type_and_names_its_place(value: Any, place: str, kind: str) -> None:
    with pytest.raises(SerializationError) as error:
        anything.dump(value)
    assert str(error.value).startswith(f"put: {place}: a {kind}; MsgpackSerializer takes None, bool")


def test_put_refuses_what_msgpack_cannot_hold() -> None:
    circular: list[Any] = []
    circular.append(circular)
    gap = pickle.PickleBuffer(memoryview(b"abc")[::2])
    for value, why in ((2**64, "ints"), (circular, "recursion"), ("\ud800", "surrogates"), ([gap], "contiguous")):
        with pytest.raises(SerializationError, match=why):
            anything.dump(value)


def test_limit_holds_on_both_sides() -> None:
    small = MsgpackSerializer(limit=100)
    large, edge = anything.dump(b"x" * 99), anything.dump(b"x" * 98)
    assert small.load(received(small.dump(b"x" * 98))) == small.load(received(edge)) == b"x" * 98
    with pytest.raises(SerializationError, match="101 bytes of msgpack; expected 100 at most: send long lists as"):
        small.dump(b"x" * 99)
    with pytest.raises(Unreadable, match=r"101 bytes of msgpack .* at most 100 \(MsgpackSerializer.limit\)"):
        small.load(received(large))
    assert small.load(received(small.dump(np.zeros(1000)))).nbytes == 8000


def test_wrong_options_are_named() -> None:
    with pytest.raises(InvalidOption, match=r"MsgpackSerializer.type: .* expected a type of msgspec"):
        MsgpackSerializer(dict[list[int], int] | dict[str, int])
    with pytest.raises(InvalidOption, match=r"MsgpackSerializer.limit: 0"):
        MsgpackSerializer(limit=0)


@pytest.mark.parametrize(
    ("type", "value", "why"),
    [
        (Point, {"x": "1"}, r"Expected `int`, got `str` - at `\$.x`"),
        (Point, {}, "missing required field `x`"),
        (Point, [1], "Expected `object`, got `array`"),
        (dict[str, np.ndarray], {"w": 1}, r"Expected `numpy.ndarray`, got `int` - at `\$\[...\]`"),
        (
            dict[str, np.ndarray],
            {"w": pickle.PickleBuffer(b"x")},
            "Expected `numpy.ndarray`, got `pickle.PickleBuffer`",
        ),
        (list[pickle.PickleBuffer], [np.zeros(2)], "Expected `pickle.PickleBuffer`, got `numpy.ndarray`"),
        (bytes, np.zeros(2), "Expected `bytes`, got `ext`"),
    ],
)
def test_message_of_another_type_is_unreadable(type: Any, value: Any, why: str) -> None:
    with pytest.raises(Unreadable, match=f"a message of .* bytes cannot be loaded: .*{why}"):
        MsgpackSerializer(type).load(received(anything.dump(value)))


# Damaged and hostile messages

WHOLE = {"name": "board", "w": np.arange(40, dtype=np.float32), "ok": [True, None], "blob": pickle.PickleBuffer(b"abc")}


@pytest.mark.parametrize("value", [WHOLE, {"a": [1, 2.5, "x", b"y"]}])
def test_every_truncation_is_unreadable(value: Any) -> None:
    whole = bytes(anything.dump(value))
    anything.load(Stream([whole]))
    for size in range(len(whole)):
        with pytest.raises(Unreadable):
            anything.load(Stream([whole[:size]]))


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_flipped_bits_give_values_or_unreadable(data: st.DataObject) -> None:
    damaged = bytearray(bytes(anything.dump(WHOLE)))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        there = anything.load(Stream([damaged]))
    except Unreadable:
        return
    anything.dump(there)


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (message(b""), "truncated"),
        (message(b"\x01\x02"), "trailing characters"),
        (message(b"\xc1"), "invalid opcode"),
        (message(b"\xa2\xff\xfe"), "utf-8|UTF-8"),  # as the version of msgspec spells it
        (message(b"\x81\x91\x80\x01"), "hashable"),
        (message(b"\x91" * 100_000), "recursion"),
        (message(b"\xd4\x05\x00"), "extension type 5; expected 1 or 2"),
        (message(b"\xd4\x02\x00"), "the buffer 0; the message has 0"),
        (message(b"\xd4\x02\x01", b"x"), "the buffer 1; the message has 1"),
        (message(b"\xd4\x02\xff", b"x"), "Expected `int` >= 0"),
        (message(b"\xd4\x02\xc0", b"x"), "Expected `int`, got `None`"),
        (message(array(0, "<f4", [2]), bytes(7)), r"an array '<f4' of shape \(2,\) has 7 bytes"),
        (message(array(0, "<f4", [2**40]), bytes(8)), "has 8 bytes"),
        (message(array(0, "<f4", [0, 2**62]), b""), "too big|too large|maximum"),
        (message(array(0, "<f4", [-1, -2]), bytes(8)), "Expected `int` >= 0"),
        (message(array(0, "<f4", [1] * 65), bytes(4)), "length <= 64"),
        (message(array(0, "|O", [1]), bytes(8)), r"dtype '\|O'; expected a number"),
        (message(array(0, "|b1", [2]), b"\1\2"), "bools; expected bytes of 0 and 1"),
        (message(array(0, "<f4"), bytes(8)), "length 3"),
    ],
)
def test_damaged_message_says_why(stream: Stream, why: str) -> None:
    with pytest.raises(Unreadable, match=f"a message of {stream.nbytes} bytes cannot be loaded: .*({why})"):
        anything.load(stream)


@pytest.mark.parametrize(
    "head", [b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"], ids=["array", "map", "bin", "str", "ext"]
)
@pytest.mark.parametrize("type", [Any, list[int], dict[str, int], tuple[int, ...], set[str], bytes, str])
def test_huge_length_allocates_no_memory(head: bytes, type: Any) -> None:
    serializer, stream = MsgpackSerializer(type), message(head + b"\xff\xff\xff\xff" + bytes(1000))
    assert _peak(lambda: _refuses(serializer, stream)) < 100_000


@pytest.mark.parametrize("fields", [(2**64 - 1, 0), (0, 2**64 - 1), (0, 2**40), (1, 2**61), (2**62, 2**62)])
def test_huge_sizes_of_layout_allocate_no_memory(fields: tuple[int, int]) -> None:
    stream = Stream([bytearray(struct.pack("<QQ", *fields) + bytes(1000))])
    assert _peak(lambda: _refuses(anything, stream)) < 100_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [b"\x90", b"\x80", b"\x81\x00\x00", b"\xd4\x02\x00", array(0, "|u1", [1]), b"\xc0"],
    ids=["list", "dict", "pair", "buffer", "array", "none"],
)
def test_values_take_bounded_memory(unit: bytes) -> None:
    """110 times the bytes of msgpack, as LIMIT says."""
    count = 20_000
    stream = message(b"\xdd" + count.to_bytes(4, "big") + unit * count, b"x")
    assert 0 < _peak(lambda: anything.load(stream)) < 110 * stream.nbytes + 10_000


@pytest.mark.slow
def test_more_buffers_than_allowed_are_refused() -> None:
    empty = [pickle.PickleBuffer(b"")] * (msgpack.MAX_BUFFERS + 1)
    with pytest.raises(SerializationError, match="65537 arrays and buffers; expected 65536 at most"):
        anything.dump(empty)
    with pytest.raises(Unreadable, match="65537 buffers"):
        anything.load(message(b"\xc0", *[b""] * (msgpack.MAX_BUFFERS + 1)))


def _refuses(serializer: MsgpackSerializer, stream: Stream) -> None:
    with pytest.raises(Unreadable):
        serializer.load(stream)


def _peak(call: Callable[[], Any]) -> int:
    """The most memory that a call has taken, in bytes."""
    call()  # imports, caches
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Libraries, and a communicator


def test_missing_msgspec_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "netq.utils.msgpack")
    monkeypatch.delattr("netq.utils.msgpack")
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(ImportError, match=r"needs msgspec: pip install 'netq-fl\[msgpack\]'"):
        __import__("netq.utils.msgpack")


def test_arrays_without_numpy_are_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = received(anything.dump([np.zeros(2)]))
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(Unreadable, match=r"numpy is missing: pip install 'netq-fl\[fl\]'"):
        anything.load(stream)
    assert anything.load(received(anything.dump({"a": 1}))) == {"a": 1}


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_messages_cross_a_link(new_wire: NewWire, kind: str) -> None:
    options = SerializationOptions(load=anything.load, dump=anything.dump)
    strict = MsgpackSerializer(dict[str, np.ndarray] | str)
    with Communicators(new_wire(kind).make) as communicators:
        server = communicators.server(serialization=SerializationOptions(load=strict.load, dump=strict.dump))
        client = communicators.client(server.netloc, serialization=options)
        sent = {"small": np.arange(3), "large": np.arange(300_000)}
        with pytest.raises(SerializationError, match=r"data\['x'\]: a builtins.object"):
            client.put({"x": object()})
        client.put({"w": 1}).result(LIMIT)
        future = client.put(sent)
        with pytest.raises(Unreadable, match=r"Expected `numpy.ndarray`, got `int`") as error:
            server.get(timeout=LIMIT)
        assert error.value.peer == client.id
        there = server.get(timeout=LIMIT).data
        future.result(LIMIT)
        assert all((there[name] == array).all() and there[name].flags.writeable for name, array in sent.items())
        server.put("thanks", client.id).result(LIMIT)
        assert client.get(timeout=LIMIT).data == "thanks"
