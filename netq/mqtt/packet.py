"""What a publication of a link holds: a header of 19 bytes, then what its kind says (docs/reference/mqtt.md). Pure.

byte 0       kind
bytes 1-8    number: of this packet in its direction, counted from 1; of a kind that is not numbered: of the last
bytes 9-16   received: how many numbered packets of the other direction have been used up
bytes 17-18  room: how many more than these may be sent
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from netq.errors import ProtocolError
from netq.text import printable

VERSION = 1
REASON = 200  # bytes of a reason
_HEADER = struct.Struct(">BQQH")
_MAGIC = b"netq"
_OPENING = struct.Struct(">4sBI")
_BLOCK = struct.Struct(">8sQ")
_NUMBER = struct.Struct(">Q")
HEADER_SIZE = _HEADER.size
OVERHEAD = HEADER_SIZE + _BLOCK.size  # bytes that a link adds to those of the session, at most
INSTANCE_SIZE = GROUP_SIZE = NONCE_SIZE = 8
QUESTIONS = 64  # that one hello answers


class Kind(enum.IntEnum):
    """What a packet is, who sends it, and what its body has."""

    OPEN = 1  # client: "netq", version, the largest publication it takes
    WELCOME = 2  # server: the same, and the server's instance
    DATA = 3  # both: bytes of the session
    BLOCK = 4  # server: group, number of a block; bytes of the session, which that block follows
    JOIN = 5  # server: group
    JOINED = 6  # client: group
    LEAVE = 7  # server: group
    ACK = 8  # both
    PROBE = 9  # both; asks for an ACK
    CLOSE = 10  # both; the link is over, as it should be
    RESET = 11  # both: why there is no such link; never answered


NUMBERED = frozenset({Kind.DATA, Kind.BLOCK, Kind.JOIN, Kind.JOINED, Kind.LEAVE})
FROM_CLIENT = frozenset(Kind) - {Kind.WELCOME, Kind.BLOCK, Kind.JOIN, Kind.LEAVE}
FROM_SERVER = frozenset(Kind) - {Kind.OPEN, Kind.JOINED}


class Packet(NamedTuple):
    """One publication of a link."""

    kind: Kind
    number: int
    received: int
    room: int
    body: memoryview


class Hello(NamedTuple):
    """What a server says to all."""

    instance: bytes
    here: bool
    answers: tuple[bytes, ...] = ()  # nonces of those who asked


class Opening(NamedTuple):
    """What OPEN and WELCOME say; a client's instance is empty."""

    size: int
    instance: bytes = b""


def header(kind: Kind, number: int, received: int, room: int) -> bytes:
    """Return what a publication begins with."""
    return _HEADER.pack(kind, number, received, room)


def decode(payload: bytes | bytearray, kinds: frozenset[Kind] = frozenset(Kind)) -> Packet:
    """Read a publication, of which only some kinds make sense here; raises ProtocolError."""
    if len(payload) < HEADER_SIZE:
        raise ProtocolError(f"a publication of {len(payload)} bytes; a header has {HEADER_SIZE}")
    code, number, received, room = _HEADER.unpack_from(payload)
    try:
        kind = Kind(code)
    except ValueError:
        raise ProtocolError(f"a packet of the unknown kind {code}") from None
    if kind not in kinds:
        raise ProtocolError(f"{kind.name} is not for this side")
    body = memoryview(payload).toreadonly()[HEADER_SIZE:]
    if kind in (Kind.ACK, Kind.PROBE, Kind.CLOSE) and body:
        raise ProtocolError(f"{kind.name} with {len(body)} bytes")
    return Packet(kind, number, received, room, body)


def opening(size: int, instance: bytes = b"") -> bytes:
    """Return the body of OPEN, or with an instance that of WELCOME."""
    return _OPENING.pack(_MAGIC, VERSION, size) + instance


def read_opening(packet: Packet) -> Opening:
    """Read OPEN or WELCOME; raises ProtocolError, which names both versions if they differ."""
    expected = _OPENING.size + (INSTANCE_SIZE if packet.kind is Kind.WELCOME else 0)
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
    """Return what the body of BLOCK begins with."""
    return _BLOCK.pack(bytes.fromhex(group), number)


def read_reference(packet: Packet) -> tuple[str, int, memoryview]:
    """Read BLOCK: the group, the number of the block, and the bytes that come before it; raises ProtocolError."""
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
    """Return what a publication of a group begins with; the bytes of the block follow."""
    return _NUMBER.pack(number)


def read_block(payload: bytes | bytearray) -> tuple[int, memoryview]:
    """Read a publication of a group; raises ProtocolError."""
    if len(payload) <= _NUMBER.size:
        raise ProtocolError(f"a block of {len(payload)} bytes")
    return _NUMBER.unpack_from(payload)[0], memoryview(payload).toreadonly()[_NUMBER.size :]


def hello(instance: bytes, *, here: bool) -> bytes:
    """Return what a server says of itself when it comes, and its will when it is gone."""
    return bytes([here]) + instance


def read_hello(payload: bytes | bytearray) -> Hello:
    """Read it; raises ProtocolError."""
    count, rest = divmod(len(payload) - 1 - INSTANCE_SIZE, NONCE_SIZE)
    if rest or not 0 <= count <= QUESTIONS or payload[0] > 1:
        raise ProtocolError(f"a hello of {len(payload)} bytes")
    instance, *answers = [bytes(payload[at : at + NONCE_SIZE]) for at in range(1, len(payload), NONCE_SIZE)]
    return Hello(instance, bool(payload[0]), tuple(answers))


def read_question(payload: bytes | bytearray) -> bytes:
    """Read what one sends who asks for the server: a nonce; raises ProtocolError."""
    if len(payload) != NONCE_SIZE:
        raise ProtocolError(f"a question of {len(payload)} bytes")
    return bytes(payload)
