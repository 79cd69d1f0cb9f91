"""docs/reference/fl-messages.md and the code agree: this reads the page's bytes and tables."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest

from fl import messages, metrics
from fl.compression import packed, quantize
from fl.envelope import Job
from fl.messages import MESSAGES, Reply, Update
from fl.tensors import json_format, serialization
from netq.utils.stream import Stream
from tests.pages import Page

PAGE = Page("docs/reference/fl-messages.md")
HEX = {name: bytes.fromhex(re.sub(r"#.*", "", text)) for name, text in PAGE.named_blocks("hex")}


def test_example_of_the_layout() -> None:
    serializer = serialization.messages()
    assert bytes(serializer.dump([b"abc", 7])) == HEX["values"]
    assert serializer.load(Stream([bytearray(HEX["values"])])) == [b"abc", 7]


def test_example_of_a_reply() -> None:
    reply = Reply(Job(7, 3, "train"), Update({"w": np.array([1, -2], np.float32)}, 5, {"loss": 0.5}))
    assert bytes(MESSAGES.dump(reply)) == HEX["reply"]
    [block] = [block for name, block in PAGE.named_blocks("hex") if name == "reply"]
    shown = "".join(line[2:] for line in block.splitlines() if line.startswith("# "))
    assert shown.encode() in HEX["reply"]


@pytest.mark.parametrize(
    ("kinds", "section"), [(messages._MESSAGES, "type, from"), (messages._CONTENTS, "type, field")]
)
def test_tables_have_the_fields_of_each_message(kinds: dict[str, Any], section: str) -> None:
    rows = PAGE.rows(*section.split(", "))
    found: dict[str, list[str]] = {}
    kind = ""
    for row in rows:
        kind = row[0] or kind
        found.setdefault(kind, []).extend(re.findall(r"`(\w+)`", row[section.count("from") + 1]))
    assert found == {name: [field.name for field in dataclasses.fields(kind)] for name, kind in kinds.items()}


def test_table_of_packed_tensors() -> None:
    names = [name for row in PAGE.section("4. Packed tensors").rows("field") for name in re.findall(r"`(\w+)`", row[0])]
    assert names == [field.name for field in dataclasses.fields(packed.Packed)]
    assert all(f'`"{coding}"`' in PAGE.text for coding in quantize.BITS)


def test_limits_and_dtypes() -> None:
    assert (
        f"at most {metrics.MAX_ELEMENTS} elements in {metrics.MAX_ARRAYS} arrays, of {metrics._MAX_DIMS} dim"
        in PAGE.text
    )
    assert f"at most {json_format.MAX_TEXT} bytes" in PAGE.text
    assert f"at most {json_format.MAX_BUFFERS} buffers" in PAGE.text
    assert f"at most {json_format.MAX_VALUES}" in PAGE.text
    assert all(f"`{code}`" in PAGE.text for code in serialization._CODES if code != "?")


def test_the_objects_of_the_table_are_read() -> None:
    rows = PAGE.rows("object", "stands for")
    fields = {"buffer": 0, "dtype": "float32", "shape": [1, 2], "strides": [2, 1], "grad": False}
    for text, _ in rows:
        for name, value in fields.items():
            text = re.sub(rf"\b{name}\b", json.dumps("<f4" if value == "float32" and "$array" in text else value), text)
        head = len(text.strip("`")).to_bytes(8, "little") + (1).to_bytes(8, "little") + (8).to_bytes(8, "little")
        whole = head + text.strip("`").encode()
        serialization.messages().load(Stream([bytearray(whole + bytes(-len(whole) % 64) + bytes(8))]))
    assert len(rows) == 6
