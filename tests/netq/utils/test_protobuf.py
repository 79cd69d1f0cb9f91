"""ProtobufSerializer: one class or several, wrong classes, damaged messages."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2, timestamp_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from netq import SerializationOptions
from netq.errors import InvalidOption, SerializationError, Unreadable
from netq.testing.fixtures import LIMIT, Communicators
from netq.utils.protobuf import ProtobufSerializer
from netq.utils.stream import Stream
from tests.wires import NewWire

one = ProtobufSerializer(struct_pb2.Struct)
several = ProtobufSerializer(struct_pb2.Struct, timestamp_pb2.Timestamp)


def made(**fields: Any) -> struct_pb2.Struct:
    message = struct_pb2.Struct()
    message.update(fields)
    return message


def splits(data: bytes) -> list[Stream]:
    """The ways in which a message may arrive: read-only, writable, in several buffers."""
    return [Stream([data]), Stream([bytearray(data)]), Stream([data[:1], data[1:]])]


def test_one_class_has_the_bytes_of_protobuf() -> None:
    sent = made(a=1, b=["x", None])
    assert one.dump(sent) == sent.SerializeToString()
    assert [one.load(stream) for stream in splits(one.dump(sent))] == [sent] * 3
    assert one.load(Stream()) == struct_pb2.Struct()


def test_several_classes_have_a_byte_in_front() -> None:
    for number, sent in enumerate([made(a=1), timestamp_pb2.Timestamp(seconds=5)]):
        assert several.dump(sent) == bytes([number]) + sent.SerializeToString()
        for stream in splits(several.dump(sent)):
            there = several.load(stream)
            assert (type(there), there) == (type(sent), sent)


def test_loaded_message_does_not_refer_to_stream() -> None:
    block = bytearray(one.dump(made(text="x" * 10_000)))
    there = one.load(Stream([block]))
    block[:] = bytes(len(block))
    assert there == made(text="x" * 10_000)


@pytest.mark.parametrize("value", [wrappers_pb2.BoolValue(value=True), {"a": 1}, b"bytes", None, struct_pb2.Struct])
def test_put_refuses_another_class(value: Any) -> None:
    with pytest.raises(SerializationError) as error:
        several.dump(value)
    kind = "google.protobuf.BoolValue" if isinstance(value, wrappers_pb2.BoolValue) else type(value).__qualname__
    text = str(error.value)
    assert kind in text
    assert text.endswith("; ProtobufSerializer takes google.protobuf.Struct or google.protobuf.Timestamp")


def test_put_refuses_message_without_required_field() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="required.proto", package="tests", syntax="proto2")
    field = file.message_type.add(name="Needs").field.add(name="id", number=1)
    field.type, field.label = field.TYPE_INT32, field.LABEL_REQUIRED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    needs = message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.Needs"))
    with pytest.raises(SerializationError, match=r"put: a tests.Needs cannot be serialised: .*id"):
        ProtobufSerializer(needs).dump(needs())


@pytest.mark.parametrize("classes", [(), (dict,), (struct_pb2.Struct, struct_pb2.Struct), (struct_pb2.Struct(),)])
def test_wrong_classes_are_named(classes: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidOption, match=r"ProtobufSerializer: .*expected 1 to 256 different classes of protobuf"):
        ProtobufSerializer(*classes)


# Damaged messages


@pytest.mark.parametrize("number", [b"", b"\2", b"\xff"])
def test_unknown_number_is_unreadable(number: bytes) -> None:
    with pytest.raises(Unreadable, match="begins with no number of a class from 0 to 1: does the peer have the same"):
        several.load(Stream([number]))


def test_truncated_field_is_unreadable() -> None:
    """A message that ends between two fields is one with fewer fields, for protobuf."""
    whole = one.dump(made(text="x" * 50))
    for size in range(1, len(whole)):
        with pytest.raises(Unreadable, match=f"a message of {size} bytes is no google.protobuf.Struct: "):
            one.load(Stream([whole[:size]]))


def test_huge_length_and_depth_are_unreadable() -> None:
    nested = b""
    for _ in range(300):
        nested = b"\x32" + _sized(b"\x0a" + _sized(nested))  # a Value with a list of one Value
    deep = ProtobufSerializer(struct_pb2.Value)
    for serializer, data in ((deep, nested), (one, b"\x0a\xff\xff\xff\xff\x07"), (one, b"\x0a" + b"\xff" * 20)):
        with pytest.raises(Unreadable):
            serializer.load(Stream([data]))


@given(st.data())
def test_flipped_bits_give_messages_or_unreadable(data: st.DataObject) -> None:
    damaged = bytearray(several.dump(made(a=1, b=["x", None, {"c": True}])))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        there = several.load(Stream([damaged]))
    except Unreadable:
        return
    assert type(there) in (struct_pb2.Struct, timestamp_pb2.Timestamp)


def _sized(data: bytes) -> bytes:
    """A field's length as protobuf writes it, and its bytes."""
    size, head = len(data), bytearray()
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + data


# Libraries, and a communicator


def test_missing_protobuf_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "netq.utils.protobuf")
    monkeypatch.delattr("netq.utils.protobuf")
    monkeypatch.setitem(sys.modules, "google.protobuf.message", None)
    with pytest.raises(ImportError, match=r"needs protobuf: pip install 'netq-fl\[protobuf\]'"):
        __import__("netq.utils.protobuf")


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_messages_cross_a_link(new_wire: NewWire, kind: str) -> None:
    options = SerializationOptions(load=several.load, dump=several.dump)
    plain = SerializationOptions(load=bytes, dump=bytes)  # a client in another language
    with Communicators(new_wire(kind).make) as communicators:
        server = communicators.server(serialization=options)
        client = communicators.client(server.netloc, serialization=options)
        other = communicators.client(server.netloc, serialization=plain)
        for sent in (made(a=1), timestamp_pb2.Timestamp(seconds=5), made(text="x" * 300_000)):
            client.put(sent).result(LIMIT)
            assert server.get(timeout=LIMIT).data == sent
        with pytest.raises(SerializationError, match=r"put: a google.protobuf.BoolValue"):
            client.put(wrappers_pb2.BoolValue())
        other.put(b"\1\x08\x05").result(LIMIT)
        assert server.get(timeout=LIMIT).data == timestamp_pb2.Timestamp(seconds=5)
        other.put(b"\1\x08").result(LIMIT)
        with pytest.raises(Unreadable, match=r"a message of 2 bytes is no google.protobuf.Timestamp") as error:
            server.get(timeout=LIMIT)
        assert error.value.peer == other.id
        server.put(timestamp_pb2.Timestamp(seconds=5), other.id).result(LIMIT)
        assert other.get(timeout=LIMIT).data == b"\1\x08\x05"
