"""The record of a finished task: what is written is read, and no part of it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.record import Damaged, Record, write
from netq.utils.stream import Stream

REPLY, STATE = [b"abc", b"", bytes(range(100))], [b"state " * 30]


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "record", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def written(fd: int, key: str = "7 3 train", state: list[bytes] = STATE) -> bytes:
    write(fd, key, Stream(REPLY), 400, Stream(state))
    return os.pread(fd, 10_000, 0)


def replace(fd: int, data: bytes) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)


@pytest.mark.parametrize("state", [STATE, []])
@pytest.mark.parametrize("key", ["", "7 3 train", "é" * 100])
def test_what_is_written_is_read(fd: int, key: str, state: list[bytes]) -> None:
    written(fd, key, state)
    record = Record.read(fd, check=True)
    assert (record.key, record.size) == (key, 400)
    assert bytes(record.reply) == b"".join(REPLY)
    assert bytes(record.state) == b"".join(state)
    assert record.reply.readonly


def test_parts_begin_at_multiples_of_64(fd: int) -> None:
    data = written(fd)
    assert data.index(b"abc") % 64 == data.index(b"state") % 64 == 0


def test_second_record_replaces_a_longer_one(fd: int) -> None:
    write(fd, "long", Stream([bytes(5000)]), 1, Stream())
    written(fd)
    assert Record.read(fd, check=True).key == "7 3 train"


def test_each_truncation_is_found(fd: int) -> None:
    data = written(fd)
    for size in range(len(data)):
        replace(fd, data[:size])
        with pytest.raises(Damaged):
            Record.read(fd, check=True)


def test_each_zeroed_or_changed_byte_is_found(fd: int) -> None:
    data = written(fd)
    for at in range(len(data)):
        replace(fd, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(Damaged):
            Record.read(fd, check=True)


def test_more_bytes_are_found(fd: int) -> None:
    replace(fd, written(fd) + b"\0")
    with pytest.raises(Damaged, match="it was cut off"):
        Record.read(fd, check=False)
