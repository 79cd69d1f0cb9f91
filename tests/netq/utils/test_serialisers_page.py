"""docs/reference/serialisers.md and the code agree: this reads the page's bytes, tables and limits."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from netq.utils import msgpack, protobuf
from netq.utils.msgpack import MsgpackSerializer
from netq.utils.protobuf import ProtobufSerializer
from netq.utils.stream import Stream
from tests.pages import Page

PAGE = Page("docs/reference/serialisers.md")
HEX = {name: bytes.fromhex(re.sub(r"#.*", "", text)) for name, text in PAGE.named_blocks("hex")}
PUT: dict[str, Any] = {
    "plain": {"n": 7, "ok": True},
    "array": {"w": np.array([1, -2], "<f4")},
    "buffer": [pickle.PickleBuffer(b"abc")],
    "protobuf": Timestamp(seconds=5),
}


@pytest.mark.parametrize("name", PUT)
def test_examples_equal_dumped_messages(name: str) -> None:
    serialiser = ProtobufSerializer(Struct, Timestamp) if name == "protobuf" else MsgpackSerializer()
    assert bytes(serialiser.dump(PUT[name])) == HEX[name]
    again = serialiser.load(Stream([bytearray(HEX[name])]))
    assert bytes(serialiser.dump(again)) == HEX[name]


def test_page_has_each_example_once() -> None:
    assert [name for name, _ in PAGE.named_blocks("hex")] == list(PUT)


def test_limits_codes_and_dtypes() -> None:
    assert f"more than {msgpack.LIMIT} bytes of msgpack" in PAGE.text
    assert f"more than {msgpack.MAX_BUFFERS}\nbuffers" in PAGE.text
    assert f"at most {protobuf.MAX_CLASSES} classes" in PAGE.text
    assert [row[0] for row in PAGE.rows("code")] == [str(msgpack.ARRAY), str(msgpack.BUFFER)]
    assert f"MsgpackSerializer(type=Any, limit={msgpack.LIMIT})" in Page("docs/reference/api.md").text
    (text,) = re.findall(r"The dtypes are (.*?)in front", PAGE.text, re.DOTALL)
    names = re.findall(r"`([^`]+)`", text)
    single, sizes = [name for name in names if name[0] == "|"], [name for name in names if name[0] in "iufc"]
    assert {*single, *[order + size for order in "<>" for size in sizes]} == msgpack.DTYPES


def test_values_arrive_as_the_table_says() -> None:
    assert [row[0].split(",")[0] for row in PAGE.rows("put")][:2] == ["None", "list; tuple; set"]
    serialiser = MsgpackSerializer()
    for put, there in (((1, 2), [1, 2]), ({3}, [3]), ({(1, 2): None}, {(1, 2): None}), (np.float32(0.5), 0.5)):
        assert serialiser.load(Stream([bytes(serialiser.dump(put))])) == there
