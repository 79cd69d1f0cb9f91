"""The head of messages."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netq.errors import Unreadable
from netq.exchange.envelope import Envelope, EnvelopeKind
from netq.utils.stream import Stream


@given(
    st.sampled_from(EnvelopeKind),
    st.integers(0, 2**64 - 1),
    st.text(max_size=100),
    st.uuids(),
    st.integers(0, 255),
    st.integers(0, 2**32 - 1),
    st.lists(st.binary(max_size=200) | st.binary(min_size=3000, max_size=5000), max_size=3),
)
def test_message_comes_as_it_went(
    kind: EnvelopeKind, number: int, name: str, peer: uuid.UUID, code: int, detail: int, data: list[bytes]
) -> None:
    if any("\ud800" <= character <= "\udfff" for character in name):
        return
    packed = Envelope(kind, number, name, peer, code, detail, Stream(data)).pack()
    whole = bytes(packed)
    for stream in (packed, Stream([whole]), Stream([whole[:20], whole[20:]])):
        found = Envelope.parse(stream)
        assert found[:6] == (kind, number, name, peer, code, detail)
        assert found.data is not None
        assert bytes(found.data) == b"".join(data)


@pytest.mark.parametrize(("data", "zeros"), [(b"data", 0), (bytes(4062), 0), (bytes(4063), 30), (bytes(100_000), 30)])
def test_layout_is_that_of_the_documentation(data: bytes, zeros: int) -> None:
    id = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    packed = bytes(Envelope(EnvelopeKind.JOB, 7, "ä", id, 1, 2, Stream([data])).pack())
    head = "11 01 0200 02000000 0700000000000000 00112233445566778899aabbccddeeff c3a4"
    assert packed == bytes.fromhex(head) + bytes(zeros) + data


def test_large_data_is_not_copied() -> None:
    data = memoryview(bytearray(5000))
    packed = Envelope(EnvelopeKind.PUBLISH, 1, "topic", data=Stream([data])).pack()
    assert isinstance(packed, Stream)
    data[0] = 7
    found = Envelope.parse(Stream([bytes(packed)])).data
    assert found is not None
    assert found.buffers[0][0] == 7
    assert (packed.nbytes - data.nbytes) % 64 == 0  # it keeps its alignment


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_unreadable(data: bytes) -> None:
    try:
        found = Envelope.parse(Stream([data]))
    except Unreadable:
        return
    assert isinstance(found.kind, EnvelopeKind)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "0 bytes; expected a message of netq.exchange"),
        (bytes(64), "kind 0, a name of 0 bytes"),
        (b"\x01\0\xff\xff" + bytes(60), "kind 1, a name of 65535 bytes"),
        (b"\x01\0\x01\0" + bytes(28) + b"\xff" + bytes(31), "a name that is not UTF-8"),
    ],
)
def test_what_is_no_message_is_named(data: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        Envelope.parse(Stream([data]))
