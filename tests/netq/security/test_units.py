"""The division of bytes into units: any steps, limits at the header, and little memory for idle links."""

from __future__ import annotations

import random

import pytest

from netq.errors import SecurityError
from netq.security.handshake import PREFACE, UNIT, Unit, unit_header
from netq.security.units import UnitReader

LIMITS = {Unit.DATA: 300_000, Unit.ALERT: 5}
IDLE = 1024  # bytes for a link on which little comes


def unit(kind: Unit, body: bytes) -> bytes:
    return unit_header(kind, len(body)) + body


def feed(reader: UnitReader, data: bytes, step: int) -> list[tuple[Unit, bytes]]:
    """Receive at most `step` bytes at a time; return type and body of each unit."""
    found, rest = [], memoryview(data)
    while rest:
        buffer = reader.buffer()
        n = min(len(buffer), len(rest), step)
        assert n > 0
        buffer[:n], rest = rest[:n], rest[n:]
        for received in reader.advance(n):
            assert received.header == unit_header(received.kind, len(received.body))
            found.append((received.kind, bytes(received.body)))
    return found


def memory(reader: UnitReader) -> int:
    return len(reader._memory)


@pytest.mark.parametrize("step", [1, 3, 1000, 70_000, 10**9])
def test_units_arrive_in_any_steps(step: int) -> None:
    chance = random.Random(1)
    sizes = [0, 1, 3, 1015, 1020, 1024, 65_531, 65_536, 70_000] if step > 3 else [0, 1, 3, 1015, 1020, 1024, 3000]
    bodies = [chance.randbytes(size) for size in [*sizes, *reversed(sizes), *sizes]]
    data = PREFACE + b"".join(unit(Unit.DATA, body) for body in bodies)
    assert feed(UnitReader(LIMITS), data, step) == [(Unit.DATA, body) for body in bodies]


def test_limits_may_change_between_two_units_of_one_step() -> None:
    reader = UnitReader({Unit.DATA: 5})
    data = PREFACE + unit(Unit.DATA, b"12345") + unit(Unit.BLOCK, bytes(100))
    reader.buffer()[: len(data)] = data
    units = reader.advance(len(data))
    assert bytes(next(units).body) == b"12345"
    reader.limits = {Unit.BLOCK: 100}
    assert next(units).kind is Unit.BLOCK


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (
            unit_header(Unit.ALERT, 6),
            "a unit of type 4 and 6 bytes on a sealed link; expected DATA of at most 300000, ALERT",
        ),
        (unit_header(Unit.DATA, 300_001), "type 5 and 300001 bytes"),
        (unit_header(Unit.BLOCK, 1), "type 7 and 1 bytes"),
        (b"\0\0\0\0", "type 0 and 0 bytes"),
        (b"\xff\xff\xff\xff", "type 255 and 16777215 bytes"),
    ],
)
def test_units_that_may_not_come_are_refused_at_the_header(header: bytes, text: str) -> None:
    reader = UnitReader(LIMITS)
    with pytest.raises(SecurityError, match=text):
        feed(reader, PREFACE + header, 100)
    assert memory(reader) == IDLE


def test_memory_follows_what_comes() -> None:
    reader = UnitReader(LIMITS)
    feed(reader, PREFACE + unit(Unit.DATA, bytes(100)), 100)
    assert memory(reader) == IDLE
    large = unit(Unit.DATA, bytes(300_000))
    feed(reader, large[:-1], 10**6)
    assert memory(reader) == len(large) + UNIT, "exactly, and room for the next header"
    feed(reader, large[-1:], 1)
    assert memory(reader) <= IDLE, "the link is idle"
    feed(reader, large, 10**6)
    assert memory(reader) <= 64 * 1024, "more may come soon"
    feed(reader, unit(Unit.DATA, bytes(100)), 10**6)
    assert memory(reader) == IDLE
