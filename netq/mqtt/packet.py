"""The format of a packet: a header of 19 bytes, and a body that depends on its kind (docs/reference/mqtt.md). Pure.

byte 0       kind
bytes 1-8    number: of this packet in its direction, from 1; in kinds without one, that of the last numbered packet
bytes 9-16   received: how many numbered packets of the other direction have been processed
bytes 17-18  room: credit, how many more than these may be sent
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from netq.errors import ProtocolError
from netq.text import printable

VERSION = 1
REASON = 200  # bytes of a reason in RESET
_HEADER = struct.Struct(">BQQH")
_MAGIC = b"netq"
_OPENING = struct.Struct(">4sBI")
_BLOCK = struct.Struct(">8sQ")
_NUMBER = struct.Struct(">Q")
HEADER_SIZE = _HEADER.size
OVERHEAD = HEADER_SIZE + _BLOCK.size  # most bytes that a link adds to those of the session
INSTANCE_SIZE = GROUP_SIZE = NONCE_SIZE = 8
QUESTIONS = 64  # nonces in one hello


class PacketKind(enum.IntEnum):
    """The kind of a packet, its sender and its body."""

    OPEN = 1  # client: "netq", version, the largest publication that it accepts
    WELCOME = 2  # server: the same, and the server's instance
    DATA = 3  # both: bytes of the session
    BLOCK = 4  # server: group, number of a block; bytes of the session that precede that block
    JOIN = 5  # server: group
    JOINED = 6  # client: group
    LEAVE = 7  # server: group
    ACK = 8  # both
    PROBE = 9  # both; asks for an ACK
    CLOSE = 10  # both; the link ends in order
    RESET = 11  # both: the reason why the link does not exist; never answered


NUMBERED = frozenset({PacketKind.DATA, PacketKind.BLOCK, PacketKind.JOIN, PacketKind.JOINED, PacketKind.LEAVE})
FROM_CLIENT = frozenset(PacketKind) - {PacketKind.WELCOME, PacketKind.BLOCK, PacketKind.JOIN, PacketKind.LEAVE}
FROM_SERVER = frozenset(PacketKind) - {PacketKind.OPEN, PacketKind.JOINED}


class Packet(NamedTuple):
    """One publication of a link."""

    kind: PacketKind
    number: int
    received: int
    room: int
    body: memoryview


class Hello(NamedTuple):
    """A server's hello to all clients."""

    instance: bytes
    here: bool
    answers: tuple[bytes, ...] = ()  # nonces of the questions


class Opening(NamedTuple):
    """The body of OPEN and WELCOME; a client's instance is empty."""

    size: int
    instance: bytes = b""


def header(kind: PacketKind, number: int, received: int, room: int) -> bytes:
    """Return the header of a packet."""
    return _HEADER.pack(kind, number, received, room)


def decode(payload: bytes | bytearray, kinds: frozenset[PacketKind] = frozenset(PacketKind)) -> Packet:
    """Read a packet of one of `kinds`; raises ProtocolError."""
    if len(payload) < HEADER_SIZE:
        raise ProtocolError(f"a publication of {len(payload)} bytes; a header has {HEADER_SIZE}")
    code, number, received, room = _HEADER.unpack_from(payload)
    try:
        kind = PacketKind(code)
    except ValueError:
        raise ProtocolError(f"a packet of the unknown kind {code}") from None
    if kind not in kinds:
        raise ProtocolError(f"{kind.name} is not for this side")
    body = memoryview(payload).toreadonly()[HEADER_SIZE:]
    if kind in (PacketKind.ACK, PacketKind.PROBE, PacketKind.CLOSE) and body:
        raise ProtocolError(f"{kind.name} with {len(body)} bytes")
    return Packet(kind, number, received, room, body)


def opening(size: int, instance: bytes = b"") -> bytes:
    """Return the body of OPEN, or with an instance that of WELCOME."""
    return _OPENING.pack(_MAGIC, VERSION, size) + instance


def read_opening(packet: Packet) -> Opening:
    """Read OPEN or WELCOME; raises ProtocolError, which names both versions if they differ."""
    expected = _OPENING.size + (INSTANCE_SIZE if packet.kind is PacketKind.WELCOME else 0)
    if bytes(packet.body[:4]) == _MAGIC and len(packet.body) > 4 and packet.body[4] != VERSION:
        raise ProtocolError(f"the peer speaks version {packet.body[4]} of netq over MQTT, this side version {VERSION}")
    if len(packet.body) != expected or bytes(packet.body[:4]) != _MAGIC:
        raise ProtocolError(f"{packet.kind.name} with {len(packet.body)} bytes, or not of netq; expected {expected}")
    if packet.number or packet.received:
        raise ProtocolError(f"{packet.kind.name} after {packet.number} packets; it is the first")
    _, _, size = _OPENING.unpack_from(packet.body)
    if not size:
        raise ProtocolError(f"{packet.kind.name}: the peer takes no publication of any size")
    return Opening(size, bytes(packet.body[_OPENING.size :]))


def reference(group: str, number: int) -> bytes:
    """Return the beginning of the body of BLOCK."""
    return _BLOCK.pack(bytes.fromhex(group), number)


def read_reference(packet: Packet) -> tuple[str, int, memoryview]:
    """Read BLOCK: the group, the number of the block, and the bytes that precede it; raises ProtocolError."""
    if len(packet.body) < _BLOCK.size:
        raise ProtocolError(f"BLOCK with {len(packet.body)} bytes")
    group, number = _BLOCK.unpack_from(packet.body)
    return group.hex(), number, packet.body[_BLOCK.size :]


def read_group(packet: Packet) -> str:
    """Read JOIN, JOINED or LEAVE; raises ProtocolError."""
    if len(packet.body) != GROUP_SIZE:
        raise ProtocolError(f"{packet.kind.name} with {len(packet.body)} bytes; a group's id has {GROUP_SIZE}")
    return bytes(packet.body).hex()


def read_reason(packet: Packet) -> str:
    """Read RESET, for a line of a log."""
    return printable(bytes(packet.body[:REASON]).decode(errors="replace"))


def block(number: int) -> bytes:
    """Return the header of a block; its bytes follow."""
    return _NUMBER.pack(number)


def read_block(payload: bytes | bytearray) -> tuple[int, memoryview]:
    """Read a block's number and bytes; raises ProtocolError."""
    if len(payload) <= _NUMBER.size:
        raise ProtocolError(f"a block of {len(payload)} bytes")
    return _NUMBER.unpack_from(payload)[0], memoryview(payload).toreadonly()[_NUMBER.size :]


def hello(instance: bytes, *, here: bool) -> bytes:
    """Return a server's hello: `here` when it starts, or not here, as its will."""
    return bytes([here]) + instance


def read_hello(payload: bytes | bytearray) -> Hello:
    """Read a hello; raises ProtocolError."""
    count, rest = divmod(len(payload) - 1 - INSTANCE_SIZE, NONCE_SIZE)
    if rest or not 0 <= count <= QUESTIONS or payload[0] > 1:
        raise ProtocolError(f"a hello of {len(payload)} bytes")
    instance, *answers = [bytes(payload[at : at + NONCE_SIZE]) for at in range(1, len(payload), NONCE_SIZE)]
    return Hello(instance, bool(payload[0]), tuple(answers))


def read_question(payload: bytes | bytearray) -> bytes:
    """Read the nonce of a question; raises ProtocolError."""
    if len(payload) != NONCE_SIZE:
        raise ProtocolError(f"a question of {len(payload)} bytes")
    return bytes(payload)
