"""docs/reference/seal.md and the code agree: this reads the page's tables and its record."""

from __future__ import annotations

import re

from netq.security import handshake, records, shared
from netq.security.handshake import Cipher, Unit
from netq.security.records import RecordReader, RecordWriter
from netq.security.sealed import REASON
from tests.pages import Page

PAGE = Page("docs/reference/seal.md")


def test_units_and_their_sizes() -> None:
    hello = handshake.RANDOM + 1 + handshake.PUBLIC_KEY
    most = {
        Unit.HELLO: f"{hello + handshake.CIPHERS} from a client, {hello + handshake.ENCAPSULATED} from a server",
        Unit.PROOF: str(handshake.PROOF),
        Unit.KEY: str(handshake.ENCAPSULATED),
        Unit.ALERT: str(REASON),
        Unit.DATA: str(records.RECORD + handshake.TAG),
        Unit.SHARED: str(shared.OPENING + handshake.TAG),
        Unit.BLOCK: "as SHARED says",
    }
    _, *rows = PAGE.tables("type", "unit")[0]
    assert [(int(row[0]), row[1], row[3]) for row in rows] == [(unit, unit.name, most[unit]) for unit in Unit]


def test_ciphers() -> None:
    _, *rows = PAGE.tables("cipher")[0]
    assert {int(number): name for number, name in rows} == {
        cipher: cipher.name.replace("CHACHA20", "ChaCha20").replace("POLY", "Poly").replace("_", "-")
        for cipher in Cipher
    }


def test_layouts() -> None:
    unit, announcement = ([int(row[0]) for row in table[1:]] for table in PAGE.tables("offset", "size", "field"))
    assert unit[-1] == handshake.UNIT
    assert announcement[-1] + 4 == shared.OPENING
    assert f"17 to {shared.LARGEST + handshake.TAG}" in PAGE.text
    assert f"1 to {records.RECORD} bytes of frames" in PAGE.text
    assert f"After each {records.REKEY} records" in PAGE.text


def test_record() -> None:
    ((name, text),) = PAGE.named_blocks("hex")
    assert name == "DATA"
    data = bytes.fromhex(re.sub(r"#.*", "", text))
    key = bytes(range(32))
    assert b"".join(RecordWriter(Cipher.AES_256_GCM, key).seal(Unit.DATA, b"hello")) == data
    assert RecordReader(Cipher.AES_256_GCM, key).open(data[:4], memoryview(data)[4:]) == b"hello"
