"""Options with each serialiser of netq and fl can be copied, and passed to processes that are not forks."""

from __future__ import annotations

import collections
import copy
import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from google.protobuf import wrappers_pb2

from fl.tensors.serialization import dump, load, messages, serialization
from fl.tensors.storage import STORAGE
from netq import CommunicatorOptions, EventOptions, NotAllowed, SerializationOptions
from netq.utils.msgpack import MsgpackSerializer
from netq.utils.protobuf import ProtobufSerializer
from netq.utils.stream import BufferSerializer, BytesSerializer, PickleSerializer, Stream, StreamSerializer


class Record(msgspec.Struct):
    """A typed message."""

    values: list[int]


class Case(NamedTuple):
    options: SerializationOptions
    value: Any


def of(serializer: Any) -> SerializationOptions:
    return SerializationOptions(load=serializer.load, dump=serializer.dump)


ARRAY = {"w": np.arange(6.0)}
CASES = {
    "pickle": Case(SerializationOptions(), ARRAY),
    "pickle, allow": Case(of(PickleSerializer(PickleSerializer.allow_by_name("numpy"))), ARRAY),
    "pickle, hooks": Case(of(PickleSerializer(PickleSerializer.allow_by_name(STORAGE), dump, load)), ARRAY),
    "pickle, hooks only": Case(of(PickleSerializer(dump=dump, load=load)), ARRAY),
    "fl.serialization": Case(serialization("collections.OrderedDict"), collections.OrderedDict(ARRAY)),
    "fl's messages": Case(of(messages()), ARRAY),
    "msgpack": Case(of(MsgpackSerializer()), ARRAY),
    "msgpack, type": Case(of(MsgpackSerializer(Record, limit=1000)), Record([1, 2])),
    "protobuf": Case(of(ProtobufSerializer(wrappers_pb2.Int32Value)), wrappers_pb2.Int32Value(value=3)),
    "protobuf, two": Case(
        of(ProtobufSerializer(wrappers_pb2.Int32Value, wrappers_pb2.StringValue)), wrappers_pb2.StringValue(value="x")
    ),
    "bytes": Case(of(BytesSerializer()), b"bytes"),
    "buffer": Case(of(BufferSerializer()), b"bytes"),
}
COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def sent(options: SerializationOptions, value: Any) -> Stream:
    return Stream([bytearray(bytes(options.dump(value)))])


def as_list(value: Any) -> Any:
    return {name: array.tolist() for name, array in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("way", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_copied_options_load_and_dump_the_same(case: Case, way: Callable[[Any], Any]) -> None:
    case.options.load(sent(case.options, case.value))  # after use, too
    whole = CommunicatorOptions(serialization=case.options, events=EventOptions(end=Stream([b"en", b"d"])))
    there = way(whole)
    assert (there.id, bytes(there.events.end)) == (whole.id, b"end")
    loaded = there.serialization.load(sent(case.options, case.value))
    again = case.options.load(sent(there.serialization, loaded))
    assert as_list(again) == as_list(case.value)
    assert bytes(there.serialization.dump(case.value)) == bytes(case.options.dump(case.value))


def test_copy_of_an_allow_list_refuses_the_same() -> None:
    serializer = PickleSerializer(PickleSerializer.allow_by_name("uuid"))
    there = pickle.loads(pickle.dumps(serializer))
    assert there.is_restricted
    bad = PickleSerializer().dump(Case)
    for each in (serializer, there):
        with pytest.raises(NotAllowed, match="which `allow` refuses"):
            each.load(bad)


def test_subclass_keeps_what_it_has() -> None:
    serializer = Counting(7)
    there = copy.deepcopy(serializer)
    assert (there.count, there.load(there.dump([1]))) == (7, [1])


class Counting(PickleSerializer):
    """A subclass with other arguments."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count


def test_stream_serializer_can_be_copied() -> None:
    assert copy.deepcopy(of(StreamSerializer())).load(Stream([b"x"])).read() == b"x"


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_options_travel_to_a_process(start: str) -> None:
    code = f"from {__name__} import travel; travel({start!r})"  # it ends the helpers of multiprocessing
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def travel(start: Any) -> None:
    context = multiprocessing.get_context(start)
    here, there = context.Pipe()
    options = {name: case.options for name, case in CASES.items()}
    process = context.Process(target=echo, args=(there, options))
    process.start()
    for name, case in CASES.items():
        here.send((name, bytes(case.options.dump(case.value))))
        answer = case.options.load(Stream([bytearray(here.recv())]))
        assert as_list(answer) == as_list(case.value), name
    here.send(None)
    process.join()
    assert process.exitcode == 0


def echo(pipe: Any, options: dict[str, SerializationOptions]) -> None:
    while (asked := pipe.recv()) is not None:
        name, data = asked
        pipe.send(bytes(options[name].dump(options[name].load(Stream([bytearray(data)])))))
