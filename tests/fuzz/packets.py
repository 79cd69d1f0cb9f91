"""Fuzz target: publications over MQTT. The parsers return fields that fit, or raise ProtocolError."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from netq.errors import ProtocolError
from netq.mqtt import packet
from netq.mqtt.packet import FROM_CLIENT, FROM_SERVER, PacketKind

GROUP = "01" * packet.GROUP_SIZE
READ: dict[PacketKind, Callable[[packet.Packet], Any]] = {
    PacketKind.OPEN: packet.read_opening,
    PacketKind.WELCOME: packet.read_opening,
    PacketKind.BLOCK: packet.read_reference,
    PacketKind.JOIN: packet.read_group,
    PacketKind.JOINED: packet.read_group,
    PacketKind.LEAVE: packet.read_group,
    PacketKind.RESET: packet.read_reason,
}
BODIES = {
    PacketKind.OPEN: packet.opening(1000),
    PacketKind.WELCOME: packet.opening(1000, bytes(packet.INSTANCE_SIZE)),
    PacketKind.BLOCK: packet.reference(GROUP, 5) + b"before",
    **dict.fromkeys((PacketKind.JOIN, PacketKind.JOINED, PacketKind.LEAVE), bytes.fromhex(GROUP)),
    **dict.fromkeys((PacketKind.DATA, PacketKind.RESET), b"text"),
}
SEEDS = [
    *[b"\0" + packet.header(kind, 0, 0, 5) + BODIES.get(kind, b"") for kind in PacketKind],
    b"\1" + packet.block(7) + b"content",
    b"\2" + packet.hello(bytes(packet.INSTANCE_SIZE), here=True) + bytes(2 * packet.NONCE_SIZE),
    b"\3" + bytes(packet.NONCE_SIZE),
]


def run(data: bytes) -> None:
    """Parse a publication. The first byte chooses the topic."""
    parse = (_packet, _block, _hello, _question)[data[0] % 4] if data else _packet
    with contextlib.suppress(ProtocolError):
        parse(data[1:])


def _packet(payload: bytes) -> None:
    for kinds in (frozenset(PacketKind), FROM_CLIENT, FROM_SERVER):
        found = packet.decode(payload, kinds)
        assert found.kind in kinds
        assert packet.header(*found[:4]) + bytes(found.body) == payload
        if found.kind in READ:
            READ[found.kind](found)


def _block(payload: bytes) -> None:
    number, content = packet.read_block(payload)
    assert packet.block(number) + bytes(content) == payload


def _hello(payload: bytes) -> None:
    hello = packet.read_hello(payload)
    assert packet.hello(hello.instance, here=hello.here) + b"".join(hello.answers) == payload
    assert len(hello.answers) <= packet.QUESTIONS


def _question(payload: bytes) -> None:
    assert packet.read_question(payload) == payload
