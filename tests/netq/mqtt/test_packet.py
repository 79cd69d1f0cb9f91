"""Packets and topics: round trips, and errors for anything invalid."""

from __future__ import annotations

import pytest

from netq import ProtocolError
from netq.mqtt import packet
from netq.mqtt.packet import PacketKind
from netq.mqtt.topic import ANY, GONE, WHO, LinkTopic, Topics, new_id, server_id

BODIES = {
    PacketKind.OPEN: packet.opening(262144),
    PacketKind.WELCOME: packet.opening(1024, b"instance"),
    PacketKind.DATA: b"any bytes",
    PacketKind.BLOCK: packet.reference("0123456789abcdef", 2**40) + b"before it",
    PacketKind.JOIN: b"8 bytes.",
    PacketKind.JOINED: b"8 bytes.",
    PacketKind.LEAVE: b"8 bytes.",
    PacketKind.ACK: b"",
    PacketKind.PROBE: b"",
    PacketKind.CLOSE: b"",
    PacketKind.RESET: b"why",
}


@pytest.mark.parametrize("kind", PacketKind)
def test_packet_round_trip(kind: PacketKind) -> None:
    came = packet.decode(packet.header(kind, 2**63, 7, 65535) + BODIES[kind])
    assert (came.kind, came.number, came.received, came.room) == (kind, 2**63, 7, 65535)
    assert came.body == BODIES[kind]


def test_header_matches_the_documentation() -> None:
    assert packet.header(PacketKind.DATA, 1, 2, 3).hex() == "03" + "0000000000000001" + "0000000000000002" + "0003"
    assert packet.opening(262144).hex() == "6e657471" + "01" + "00040000"


@pytest.mark.parametrize("size", range(packet.HEADER_SIZE))
def test_truncated_header_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        packet.decode(packet.header(PacketKind.DATA, 1, 1, 1)[:size])


@pytest.mark.parametrize("kind", set(range(256)) - set(PacketKind))
def test_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"unknown kind {kind}"):
        packet.decode(bytes([kind]) + bytes(100))


@pytest.mark.parametrize("kind", [PacketKind.ACK, PacketKind.PROBE, PacketKind.CLOSE])
def test_kind_without_a_body_is_refused_with_one(kind: PacketKind) -> None:
    with pytest.raises(ProtocolError, match="with 1 bytes"):
        packet.decode(packet.header(kind, 0, 0, 0) + b"x")


@pytest.mark.parametrize("kind", [PacketKind.OPEN, PacketKind.WELCOME])
def test_opening_of_wrong_length_is_refused(kind: PacketKind) -> None:
    assert packet.read_opening(decoded(kind, BODIES[kind])).size in (262144, 1024)
    for body in [BODIES[kind][:size] for size in range(len(BODIES[kind]))] + [BODIES[kind] + b"x"]:
        with pytest.raises(ProtocolError):
            packet.read_opening(decoded(kind, body))


def test_version_error_names_both_versions() -> None:
    with pytest.raises(ProtocolError, match=r"version 7 .* version 1"):
        packet.read_opening(decoded(PacketKind.OPEN, b"netq\x07 and whatever it has"))


def test_opening_after_other_packets_is_refused() -> None:
    late = packet.decode(packet.header(PacketKind.OPEN, 1, 0, 8) + BODIES[PacketKind.OPEN])
    with pytest.raises(ProtocolError, match="it is the first"):
        packet.read_opening(late)


def test_group_block_and_hello_round_trip() -> None:
    group, number, before = packet.read_reference(decoded(PacketKind.BLOCK, BODIES[PacketKind.BLOCK]))
    assert (group, number, bytes(before)) == ("0123456789abcdef", 2**40, b"before it")
    assert packet.read_group(decoded(PacketKind.JOIN, bytes(range(8)))) == "0001020304050607"
    number, data = packet.read_block(packet.block(9) + b"data")
    assert (number, bytes(data)) == (9, b"data")
    assert packet.read_hello(packet.hello(b"instance", here=True)) == (b"instance", True, ())
    assert packet.read_hello(packet.hello(b"instance", here=False)) == (b"instance", False, ())
    answer = packet.hello(b"instance", here=True) + b"question" + b"another."
    assert packet.read_hello(answer) == (b"instance", True, (b"question", b"another."))
    assert packet.read_question(b"question") == b"question"


@pytest.mark.parametrize("size", [0, 7, 9, 16])
def test_question_of_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        packet.read_question(bytes(size))


@pytest.mark.parametrize("size", [1 + 8 * (packet.QUESTIONS + 2), 10, 16])
def test_hello_with_wrong_answers_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        packet.read_hello(bytes(size))


def test_reason_is_one_printable_line() -> None:
    said = packet.header(PacketKind.RESET, 0, 0, 0) + b"bye\n12:00 CRITICAL root \x1b[2J\xff" + b"x" * 1000
    reason = packet.read_reason(packet.decode(said))
    assert reason.isprintable()
    assert reason.startswith("bye\\n12:00 CRITICAL root \\x1b[2J")
    assert len(reason) <= 4 * packet.REASON
    assert packet.read_reason(decoded(PacketKind.RESET, b"\xff" * 300)) == "�" * packet.REASON


@pytest.mark.parametrize("size", [0, 7, 9])
def test_group_and_hello_of_wrong_size_are_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        packet.read_group(decoded(PacketKind.LEAVE, bytes(size)))
    with pytest.raises(ProtocolError):
        packet.read_hello(bytes(size + (size == 9)))


@pytest.mark.parametrize("size", range(9))
def test_empty_block_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        packet.read_block(bytes(size))


@pytest.mark.parametrize("prefix", ["netq", "site/1/netq", "ä b"])
def test_topics_round_trip(prefix: str) -> None:
    topics = Topics(prefix)
    for link_topic in (
        LinkTopic("s", new_id(), new_id()),
        LinkTopic("c", new_id(), new_id()),
        LinkTopic("s", new_id(), GONE),
    ):
        assert topics.parse_link(topics.link(link_topic)) == link_topic
    assert topics.parse_link(topics.link(LinkTopic("s", new_id(), WHO))) is not None
    group = new_id()
    assert topics.parse_group(topics.group(group)) == group
    assert topics.link(LinkTopic("s", ANY, ANY)) == f"{prefix}/s/+/+"
    assert topics.link(LinkTopic("c", "c1", ANY)) == f"{prefix}/c/c1/+"


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "netq",
        "netq/hello",
        "netq/s/0123456789abcdef",
        "netq/s/0123456789abcdef/0123456789ABCDEF",
        "netq/s/0123456789abcdef/0123456789abcdef\n",
        "netq/x/0123456789abcdef/0123456789abcdef",
        "netq/c/0123456789abcdef/gone",
        "netq/s/gone/0123456789abcdef",
        "other/s/0123456789abcdef/0123456789abcdef",
        "more/netq/s/0123456789abcdef/0123456789abcdef",
        "netq/s/0123456789abcdef/0123456789abcdef/0123456789abcdef",
        "netq/g/0123456789abcdef",
    ],
)
def test_other_topics_are_not_parsed(topic: str) -> None:
    assert Topics("netq").parse_link(topic) is None
    assert Topics("netq").parse_group(topic) == ("0123456789abcdef" if topic.startswith("netq/g/") else None)


def test_server_id_depends_on_the_prefix_only() -> None:
    assert server_id("a/b+c#") == server_id("a/b+c#") != server_id("a/b")
    assert server_id("a/b+c#").replace("-", "").isalnum()


def decoded(kind: PacketKind, body: bytes) -> packet.Packet:
    return packet.decode(packet.header(kind, 0, 0, 8) + body)
