"""fl's format of messages: round trips, the bytes, what cannot be sent, and invalid or hostile messages."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
import tracemalloc
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from fl.tensors import json_format
from fl.tensors.json_format import MAX_BUFFERS, MAX_TEXT, MAX_VALUES, _values
from fl.tensors.serialization import messages
from netq.errors import SerializationError, Unreadable
from netq.utils.stream import PickleSerializer, Stream

WHOLE = some.integers(-(2**63), 2**64 - 1)
LEAVES = some.none() | some.booleans() | WHOLE | some.floats() | some.text() | some.binary()
VALUES = some.recursive(
    LEAVES, lambda inner: some.lists(inner) | some.dictionaries(some.text("$ab"), inner), max_leaves=15
)
MIB = 2**20
LIMITS = {"MAX_TEXT": 2000, "MAX_BUFFERS": 10, "MAX_VALUES": 99}


def travelled(values: Any) -> Any:
    """As a peer gets them: out of one block of memory."""
    return messages().load(Stream([bytearray(bytes(messages().dump(values)))]))


def handmade(text: str | bytes, *buffers: bytes) -> Stream:
    """A message that a peer wrote itself."""
    text = text.encode() if isinstance(text, str) else text
    whole = bytearray(struct.pack(f"<{2 + len(buffers)}Q", len(text), len(buffers), *map(len, buffers)) + text)
    for buffer in buffers:
        whole += bytes(-len(whole) % 64) + buffer
    return Stream([whole])


def text_of(values: Any) -> str:
    """The JSON text of a message."""
    whole = bytes(messages().dump(values))
    size, count = struct.unpack_from("<QQ", whole)
    return whole[16 + 8 * count :][:size].decode()


@given(VALUES)
def test_plain_values_round_trip(values: Any) -> None:
    found = travelled(values)
    assert repr(found) == repr(values)  # a nan is not equal to itself


def test_text_is_json() -> None:
    values = {
        "a": [1, 2.5, None, True, "é"],
        "$b": math.inf,
        "c": b"xyz",
        "d": (1,),
        "e": OrderedDict(x=np.float32(0.5)),
    }
    assert json.loads(text_of(values)) == {
        "a": [1, 2.5, None, True, "é"],
        "$$b": {"$float": "inf"},
        "c": {"$bytes": 0},
        "d": [1],
        "e": {"x": 0.5},
    }
    assert "\\u00e9" in text_of("é")  # ASCII


def test_arrays_and_tensors_are_numbered_buffers() -> None:
    turned, tensor = np.arange(6, dtype="<i2").reshape(2, 3).T, torch.ones(2, 2)
    layer = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    values = {"a": turned, "b": tensor, "again": tensor.view(4), "c": layer, "d": np.array(1.5)}
    assert json.loads(text_of(values)) == {
        "a": {"$array": [0, "<i2", [3, 2], [1, 3]]},
        "b": {"$tensor": [1, "float32", [2, 2], None, False]},
        "again": {"$tensor": [1, "float32", [4], None, False]},
        "c": {"$parameter": [2, "bfloat16", [3], None, True]},
        "d": {"$array": [3, "<f8", []]},
    }
    found = travelled(values)
    np.testing.assert_array_equal(found["a"], turned)
    assert torch.equal(found["b"], tensor)
    found["b"][0, 0] = 5
    assert found["again"][0] == 5  # they share memory again
    assert type(found["c"]) is torch.nn.Parameter
    assert (found["d"].shape, float(found["d"])) == ((), 1.5)


def test_arrays_are_views_of_the_message_and_sent_from_their_own_memory() -> None:
    array = np.arange(1000.0)
    message = messages().dump([array])
    assert any(np.shares_memory(array, np.frombuffer(buffer, np.uint8)) for buffer in message.buffers)
    block = np.frombuffer(bytearray(bytes(message)), np.uint8)
    [found] = messages().load(Stream([block.data]))
    assert np.shares_memory(found, block)
    assert found.flags.writeable


def test_buffers_begin_at_multiples_of_64() -> None:
    whole = bytes(messages().dump([b"one", np.array([7], np.uint8)]))
    assert struct.unpack_from("<4Q", whole) == (len(text_of([b"one", np.array([7], np.uint8)])), 2, 3, 1)
    assert (whole[128:131], whole[131:192], whole[192:]) == (b"one", bytes(61), b"\x07")


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"x": {1, 2}}, "'x': a builtins.set; expected None, bool"),
        ({"x": [[print]]}, "'x': a builtins.builtin_function_or_method; expected"),
        ({"x": {5: 1}}, "'x': 5 as a key; expected a text"),
        ({b"x": 1}, "the message: b'x' as a key; expected a text"),
        ({"x": 2**64}, "'x': a whole number of 65 bits; expected 64 at most"),
        ({"x": 1j}, "'x': a builtins.complex; expected"),
        ({"x": np.array([None])}, "'x': a numpy.ndarray of dtype object; expected"),
        ({"x": np.complex64(1)}, "'x': a numpy.complex64 of dtype complex64; expected"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_value_that_cannot_be_sent_is_named(value: Any, error: str) -> None:
    with pytest.raises(SerializationError) as caught:
        messages().dump(value)
    assert error in str(caught.value)


def test_a_list_in_itself_is_an_error() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(SerializationError, match="lists and dicts in one another"):
        messages().dump(circle)


@pytest.mark.parametrize(
    ("value", "count", "most"),
    [
        ("a" * 1999, "2001 bytes of JSON", "MAX_TEXT"),
        ([b""] * 11, "11 arrays and bytes", "MAX_BUFFERS"),
        ([[]] * 50, "100 values", "MAX_VALUES"),
        ([{"a": 1}] * 25, "100 values", "MAX_VALUES"),
    ],
)
def test_a_message_above_a_limit_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, value: Any, count: str, most: str
) -> None:
    for name, limit in LIMITS.items():
        monkeypatch.setattr(json_format, name, limit)
    expected = f"a message has {count}; expected {LIMITS[most]} at most: put a long list into an array, and many small"
    with pytest.raises(SerializationError, match=expected):
        messages().dump(value)
    messages().dump(value[1:])


def test_a_message_above_a_limit_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = messages(text=1000, buffers=100)
    for message in (handmade(" " * 1000 + "1"), handmade("1", *[b""] * 101)):
        with pytest.raises(Unreadable, match="expected at most 1000 bytes of JSON and 100 buffers"):
            plain.load(message)
    assert plain.load(handmade(" " * 999 + "1", *[b""] * 100)) == 1
    monkeypatch.setattr(json_format, "MAX_VALUES", 99)
    for text in (f"[{'[],' * 49}[]]", f"[{'{},' * 24}{{}}]"):
        with pytest.raises(Unreadable, match="expected at most 99 values"):
            plain.load(handmade(text))
    assert plain.load(handmade(f"[{'[],' * 48}[]]")) == [[]] * 49


def test_twice_100_000_tensors_are_within_the_limits() -> None:
    """With names of 200 bytes, as SCAFFOLD's update of them. Measured at a hundredth: all is in proportion."""
    sent = {f"{number:0200}": np.ones(1, np.float32) for number in range(2_000)}
    text = text_of(sent)
    assert 100 * len(text) < MAX_TEXT
    assert 100 * _values(text) < MAX_VALUES
    assert 100 * len(sent) < MAX_BUFFERS
    found = travelled(sent)
    assert found.keys() == sent.keys()
    assert all(each[0] == 1 for each in found.values())


INVALID: dict[str, Stream] = {
    "nothing": Stream([b""]),
    "a pickle": PickleSerializer().dump([1, 2]),
    "no JSON": handmade("hello"),
    "no UTF-8": handmade(b'"\xff"'),
    "UTF-16": handmade("[1]".encode("utf-16")),
    "text behind it": handmade("[1] 2"),
    "cut off": Stream([bytes(handmade('{"a": 1}'))[:-1]]),
    "a buffer that is cut off": Stream([bytes(handmade('{"$bytes": 0}', b"abc"))[:-1]]),
    "a buffer of 2^63 bytes": Stream([struct.pack("<3Q", 2, 1, 2**63) + b"[]"]),
    "2^61 buffers": Stream([struct.pack("<2Q", 2, 2**61) + b"[]"]),
    "a text of 2^63 bytes": Stream([struct.pack("<2Q", 2**63, 0) + b"[]"]),
    "NaN": handmade("[NaN]"),
    "Infinity": handmade("-Infinity"),
    "a float that is none": handmade('{"$float": "1e5"}'),
    "a float as a number": handmade('{"$float": 1}'),
    "digits": handmade("1" * 100_000),
    "a key twice": handmade('{"a": 1, "a": 2}'),
    "an unknown reserved key": handmade('{"$class": "os.system"}'),
    "two reserved keys": handmade('{"$bytes": 0, "$array": 0}', b""),
    "a reserved key and another": handmade('{"$bytes": 0, "a": 0}', b""),
    "no such buffer": handmade('{"$bytes": 1}', b""),
    "a negative buffer": handmade('{"$bytes": -1}', b""),
    "a buffer by True": handmade('{"$bytes": true}', b"", b""),
    "a buffer by a list": handmade('{"$bytes": [0]}', b""),
    "an array of no list": handmade('{"$array": {"a": 1}}', b""),
    "an array without shape": handmade('{"$array": [0, "<f4"]}', b""),
    "an array of 5 fields": handmade('{"$array": [0, "<f4", [0], null, false]}', b""),
    "a tensor of 3 fields": handmade('{"$tensor": [0, "float32", [0]]}', b""),
    "an array of another size": handmade('{"$array": [0, "<f4", [2]]}', b"1234"),
    "an array of objects": handmade('{"$array": [0, "|O", [1]]}', bytes(8)),
    "an array of no dtype": handmade('{"$array": [0, ["<f4"], [1]]}', bytes(4)),
    "a shape of floats": handmade('{"$array": [0, "<f4", [1.0]]}', bytes(4)),
    "a shape of lists": handmade('{"$array": [0, "<f4", [[1]]]}', bytes(4)),
    "a shape that is none": handmade('{"$array": [0, "<f4", 1]}', bytes(4)),
    "a negative shape": handmade('{"$array": [0, "<f4", [-1, -1]]}', bytes(4)),
    "a vast shape": handmade('{"$array": [0, "<f4", [4611686018427387904, 4]]}', b""),
    "strides with a gap": handmade('{"$array": [0, "<f4", [2], [2]]}', bytes(8)),
    "strides of an overlap": handmade('{"$array": [0, "<f4", [2, 1], [0, 0]]}', bytes(8)),
    "a bool that is neither": handmade('{"$array": [0, "|b1", [1]]}', b"\x02"),
    "requires_grad of a number": handmade('{"$tensor": [0, "float32", [1], null, 1]}', bytes(4)),
    "deep": handmade("[" * 200_000 + "]" * 200_000),
    "deep objects": handmade('{"a":' * 200_000 + "1" + "}" * 200_000),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_message_is_unreadable(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Unreadable) as caught:
            messages().load(INVALID[name])
        assert tracemalloc.get_traced_memory()[1] < 28 * MIB
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 700


def test_the_valid_forms_of_these_are_read() -> None:
    load = messages().load
    assert load(handmade(' {"a" : [1, {"$float": "-inf"}]} ')) == {"a": [1, -math.inf]}
    assert load(handmade('[{"$bytes": 0}, {"$$a": 1}]', b"abc", b"not used")) == [b"abc", {"$a": 1}]
    assert load(handmade('{"$array": [0, "<f4", [2], [1]]}', bytes(8))).tolist() == [0, 0]


def test_references_to_one_buffer_cost_no_copies() -> None:
    """A peer refers to the same MiB 20,000 times."""
    for reference in ('{"$bytes":0}', '{"$array":[0,"|u1",[1048576]]}'):
        message = handmade(f"[{','.join([reference] * 20_000)}]", bytes(MIB))
        tracemalloc.start()
        try:
            found = messages().load(message)
            assert tracemalloc.get_traced_memory()[1] < 6 * MIB
        finally:
            tracemalloc.stop()
        assert len(found) == 20_000
        assert all(each is found[0] for each in found)


@pytest.mark.parametrize("item", ["[]", "{}", "[[]]", "[1]", "1.5", '"ab"', '{"a":{}}', '{"a":1}', '{"$$a":[]}'])
def test_no_value_takes_much_memory(item: str) -> None:
    """Measured at a 64th of the most values: the memory is in proportion, and a constant counts 64 times."""
    most = MAX_VALUES // 64
    message = handmade(f"[{','.join([item] * (most // (_values(item) + 1)))}]")
    tracemalloc.start()
    try:
        assert messages().load(message)
        assert tracemalloc.get_traced_memory()[1] < 70 * most
    finally:
        tracemalloc.stop()


def test_without_tensors_it_needs_no_numpy() -> None:
    message = bytes(messages().dump({"model": {"w": np.zeros(3)}, "round": 3}))
    script = f"""
import sys
from fl.tensors.json_format import JsonSerializer
from netq.utils.stream import Stream
assert JsonSerializer().load(Stream([{message!r}])) == {{"model": {{"w": None}}, "round": 3}}
assert "numpy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
