"""The ring: bytes arrive complete and in order, no wakeup is lost, and an impossible number raises RingError."""

from __future__ import annotations

import hashlib
import inspect
import json
import mmap
import os
import re
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netq.shm import memfd, ring
from netq.shm.fence import make_fence
from netq.shm.ring import HEADER, Reader, RingError, Writer

HEAD, WANTED, TAIL, ASLEEP = 0, 64, 128, 192


def make(size: int) -> tuple[bytearray, Writer, Reader]:
    memory = bytearray(HEADER + size)
    return memory, Writer(memory), Reader(memory)


def read(reader: Reader, n: int) -> bytes:
    into = bytearray(n)
    reader.available()
    return bytes(into[: reader.read_into(memoryview(into))])


def put_number(memory: bytearray, offset: int, value: int) -> None:
    memory[offset : offset + 8] = value.to_bytes(8, sys.byteorder)


STEP = st.one_of(
    st.tuples(st.just("write"), st.lists(st.binary(max_size=40), max_size=3)),
    st.tuples(st.just("read"), st.integers(1, 60)),
    st.tuples(st.just("skip"), st.integers(0, 60)),
    st.tuples(st.just("reader sleeps"), st.none()),
    st.tuples(st.just("writer sleeps"), st.none()),
)


@given(st.integers(1, 50), st.lists(STEP, max_size=60))
def test_ring_behaves_like_a_queue_of_bytes(size: int, steps: list[tuple[str, object]]) -> None:
    _, writer, reader = make(size)
    queue = b""
    for step, value in steps:
        assert (writer.free(), reader.available()) == (size - len(queue), len(queue))
        match step, value:
            case "write", list(buffers):
                data = b"".join(buffers)[: size - len(queue)]
                assert writer.write(buffers) == len(data)
                queue += data
            case "read", int(n):
                assert read(reader, n) == queue[:n]
                queue = queue[n:]
            case "skip", int(n):
                reader.skip(min(n, len(queue)))
                queue = queue[n:]
            case "reader sleeps", _:
                assert reader.sleep() is (not queue)
                reader.wake()
            case "writer sleeps", _:
                assert writer.sleep() is (size - len(queue) < size - size // 2)


def test_reader_is_woken_once_for_each_sleep() -> None:
    _, writer, reader = make(100)
    writer.write([b"one"])
    assert not writer.claim_wakeup()
    read(reader, 3)
    for _ in range(2):
        assert reader.sleep()
        assert not writer.claim_wakeup()  # no new bytes
        writer.write([b"two"])
        assert writer.claim_wakeup()
        writer.write([b"three"])
        assert not writer.claim_wakeup()
        reader.wake()
        assert read(reader, 8) == b"twothree"


def test_reader_is_woken_again_after_a_needless_wakeup() -> None:
    _, writer, reader = make(100)
    writer.write([b"seen by a reader that was awake"])
    read(reader, 100)
    assert reader.sleep()
    assert writer.claim_wakeup()  # head moved before the sleep, and was not checked since
    reader.wake()
    assert reader.sleep()
    writer.write([b"more"])
    assert writer.claim_wakeup()


def test_writer_claims_a_wakeup_after_the_reader_has_left() -> None:
    _, writer, reader = make(100)
    writer.write([b"unread"])
    reader.leave()
    writer.write([b"more"])
    assert writer.claim_wakeup()


def test_reader_does_not_sleep_with_bytes_in_the_ring() -> None:
    _, writer, reader = make(100)
    writer.write([b"x"])
    assert not reader.sleep()
    assert not writer.claim_wakeup()


def test_writer_is_woken_once_when_half_of_the_ring_is_free() -> None:
    _, writer, reader = make(100)
    writer.write([bytes(100)])
    assert not reader.claim_wakeup()
    assert writer.sleep()
    read(reader, 49)
    assert not reader.claim_wakeup()
    read(reader, 1)
    assert reader.claim_wakeup()
    read(reader, 1)
    assert not reader.claim_wakeup()


def test_writer_does_not_sleep_with_room_in_the_ring() -> None:
    _, writer, reader = make(100)
    writer.write([bytes(100)])
    read(reader, 50)
    assert not writer.sleep()


@pytest.mark.parametrize("head", [5, 9, 111, 2**63, 2**64 - 1])
def test_impossible_head_raises(head: int) -> None:
    memory, writer, reader = make(100)
    writer.write([b"0123456789"])
    assert reader.available() == 10
    put_number(memory, HEAD, head)
    with pytest.raises(RingError, match=f"the writer says {head}, expected 10 to 100"):
        reader.available()


@pytest.mark.parametrize("tail", [3, 11, 2**64 - 1])
def test_impossible_tail_raises(tail: int) -> None:
    memory, writer, reader = make(100)
    writer.write([b"0123456789"])
    read(reader, 4)
    assert writer.free() == 94
    put_number(memory, TAIL, tail)
    with pytest.raises(RingError, match=f"the reader says {tail}, expected 4 to 10"):
        writer.free()


@given(st.lists(st.tuples(st.sampled_from([HEAD, WANTED, TAIL, ASLEEP]), st.integers(0, 2**64 - 1)), max_size=20))
def test_random_numbers_raise_nothing_but_ring_error(numbers: list[tuple[int, int]]) -> None:
    memory, writer, reader = make(64)
    try:
        for offset, value in numbers:
            put_number(memory, offset, value)
            writer.write([b"abc"])
            read(reader, 2)
            writer.claim_wakeup(), reader.claim_wakeup(), reader.sleep(), writer.sleep()
    except RingError:
        pass
    assert len(memory) == HEADER + 64


def test_memory_without_room_for_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="a ring in 256 bytes"):
        Writer(bytearray(HEADER))


def test_example_in_the_docstring() -> None:
    text = inspect.getdoc(ring) or ""
    example = re.findall(r"^    (\S.*?)(?: +# (\d+).*)?$", text[text.index("    memory = ") :], re.MULTILINE)
    scope: dict[str, Any] = {"HEADER": HEADER, "Writer": Writer, "Reader": Reader}
    for code, answer in example:
        if answer:
            assert eval(code, scope) == int(answer), code
        else:
            exec(code, scope)
    assert len(example) == 6
    assert scope["into"][:9] == b"any bytes"


PRODUCER = """
import hashlib, mmap, os, random, select, sys
from netq.shm.fence import make_fence
from netq.shm.ring import Writer
memory, data, room, count = map(int, sys.argv[1:])
writer, digest, source = Writer(mmap.mmap(memory, 0), make_fence()), hashlib.sha256(), random.Random(0)
blob = source.randbytes(100_000)
while count:
    start, size = source.randrange(50_000), min(source.choice([1, 24, 700, 9000]), count)
    piece = memoryview(blob)[start : start + size]
    digest.update(piece)
    count -= size
    while piece:
        piece = piece[writer.write([piece]) :]
        if writer.claim_wakeup():
            os.eventfd_write(data, 1)
        if piece and writer.sleep():
            os.eventfd_read(room)
print(digest.hexdigest())
"""


def consume(memory: mmap.mmap, data: int, room: int, count: int) -> tuple[str, int]:
    """Read `count` bytes; return their checksum, and how often the reader slept."""
    reader, digest, sleeps = Reader(memoryview(memory), make_fence()), hashlib.sha256(), 0
    into = memoryview(bytearray(5000))
    while count:
        if not reader.available():
            if reader.sleep():
                sleeps += 1
                os.eventfd_read(data)
                reader.wake()
            continue
        n = reader.read_into(into)
        digest.update(into[:n])
        count -= n
        if reader.claim_wakeup():
            os.eventfd_write(room, 1)
    return digest.hexdigest(), sleeps


@pytest.mark.slow
@pytest.mark.parametrize("size", [1000, 65536])
def test_two_processes_at_full_speed(size: int) -> None:
    count = 10_000_000
    fd, data, room = memfd.make(HEADER + size), os.eventfd(0), os.eventfd(0)
    try:
        command = [sys.executable, "-c", PRODUCER, *map(str, (fd, data, room, count))]
        with subprocess.Popen(command, pass_fds=(fd, data, room), stdout=subprocess.PIPE, text=True) as process:
            stopped = threading.Timer(60, process.kill)  # then no more bytes arrive, and the test's own limit ends it
            stopped.start()
            digest, sleeps = consume(mmap.mmap(fd, 0), data, room, count)
            sent, _ = process.communicate(timeout=30)
            stopped.cancel()
            stopped.join()
    finally:
        for file in (fd, data, room):
            os.close(file)
    assert digest == sent.strip()
    print(json.dumps({"ring": size, "sleeps of the reader": sleeps}))
