"""The ring: what is written is read, in order, whatever the other side does meanwhile, and nobody sleeps through it."""

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
    reader.ready()
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
def test_it_does_what_a_queue_of_bytes_does(size: int, steps: list[tuple[str, object]]) -> None:
    _, writer, reader = make(size)
    queue = b""
    for step, value in steps:
        assert (writer.room(), reader.ready()) == (size - len(queue), len(queue))
        assert bytes(reader.look(len(queue))) == queue  # in two pieces or not
        assert queue.startswith(bytes(reader.look(len(queue) // 2)))
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


def test_a_sleeping_reader_is_woken_once_and_one_that_is_awake_never() -> None:
    _, writer, reader = make(100)
    writer.write([b"one"])
    assert not writer.bell()
    read(reader, 3)
    for _ in range(2):
        assert reader.sleep()
        assert not writer.bell()  # nothing new
        writer.write([b"two"])
        assert writer.bell()
        writer.write([b"three"])
        assert not writer.bell()
        reader.wake()
        assert read(reader, 8) == b"twothree"


def test_a_reader_that_was_woken_for_nothing_is_woken_again_from_its_next_sleep() -> None:
    _, writer, reader = make(100)
    writer.write([b"seen by a reader that was awake"])
    read(reader, 100)
    assert reader.sleep()
    assert writer.bell()  # it came too late to know
    reader.wake()
    assert reader.sleep()
    writer.write([b"more"])
    assert writer.bell()


def test_a_reader_does_not_fall_asleep_beside_bytes() -> None:
    _, writer, reader = make(100)
    writer.write([b"x"])
    assert not reader.sleep()
    assert not writer.bell()


def test_a_sleeping_writer_is_woken_when_half_of_the_ring_is_free_and_once() -> None:
    _, writer, reader = make(100)
    writer.write([bytes(100)])
    assert not reader.bell()
    assert writer.sleep()
    read(reader, 49)
    assert not reader.bell()
    read(reader, 1)
    assert reader.bell()
    read(reader, 1)
    assert not reader.bell()


def test_a_writer_does_not_fall_asleep_beside_room() -> None:
    _, writer, reader = make(100)
    writer.write([bytes(100)])
    read(reader, 50)
    assert not writer.sleep()


@pytest.mark.parametrize("head", [5, 9, 111, 2**63, 2**64 - 1])
def test_a_writer_that_goes_back_or_too_far_is_found_out(head: int) -> None:
    memory, writer, reader = make(100)
    writer.write([b"0123456789"])
    assert reader.ready() == 10
    put_number(memory, HEAD, head)
    with pytest.raises(RingError, match=f"the writer says {head}, expected 10 to 100"):
        reader.ready()


@pytest.mark.parametrize("tail", [3, 11, 2**64 - 1])
def test_a_reader_that_goes_back_or_beyond_what_was_written_is_found_out(tail: int) -> None:
    memory, writer, reader = make(100)
    writer.write([b"0123456789"])
    read(reader, 4)
    assert writer.room() == 94
    put_number(memory, TAIL, tail)
    with pytest.raises(RingError, match=f"the reader says {tail}, expected 4 to 10"):
        writer.room()


@given(st.lists(st.tuples(st.sampled_from([HEAD, WANTED, TAIL, ASLEEP]), st.integers(0, 2**64 - 1)), max_size=20))
def test_numbers_at_random_do_no_more_than_end_it(numbers: list[tuple[int, int]]) -> None:
    memory, writer, reader = make(64)
    try:
        for offset, value in numbers:
            put_number(memory, offset, value)
            writer.write([b"abc"])
            read(reader, 2)
            writer.bell(), reader.bell(), reader.sleep(), writer.sleep()
    except RingError:
        pass
    assert len(memory) == HEADER + 64


def test_a_memory_without_room_for_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="a ring in 256 bytes"):
        Writer(bytearray(HEADER))


def test_the_example_in_its_docstring_does_what_it_says() -> None:
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
memory, bell, doorbell, count = map(int, sys.argv[1:])
writer, digest, source = Writer(mmap.mmap(memory, 0), make_fence()), hashlib.sha256(), random.Random(0)
blob = source.randbytes(100_000)
while count:
    start, size = source.randrange(50_000), min(source.choice([1, 24, 700, 9000]), count)
    piece = memoryview(blob)[start : start + size]
    digest.update(piece)
    count -= size
    while piece:
        piece = piece[writer.write([piece]) :]
        if writer.bell():
            os.eventfd_write(bell, 1)
        if piece and writer.sleep():
            os.eventfd_read(doorbell)
print(digest.hexdigest())
"""


def consume(memory: mmap.mmap, bell: int, doorbell: int, count: int) -> tuple[str, int]:
    """Read until all has come; return its checksum, and how often there was nothing."""
    reader, digest, sleeps = Reader(memoryview(memory), make_fence()), hashlib.sha256(), 0
    into = memoryview(bytearray(5000))
    while count:
        if not reader.ready():
            if reader.sleep():
                sleeps += 1
                os.eventfd_read(bell)
                reader.wake()
            continue
        n = reader.read_into(into)
        digest.update(into[:n])
        count -= n
        if reader.bell():
            os.eventfd_write(doorbell, 1)
    return digest.hexdigest(), sleeps


@pytest.mark.slow
@pytest.mark.parametrize("size", [1000, 65536])
def test_two_processes_at_full_speed(size: int) -> None:
    count = 30_000_000
    fd, bell, doorbell = memfd.make(HEADER + size), os.eventfd(0), os.eventfd(0)
    try:
        command = [sys.executable, "-c", PRODUCER, *map(str, (fd, bell, doorbell, count))]
        with subprocess.Popen(command, pass_fds=(fd, bell, doorbell), stdout=subprocess.PIPE, text=True) as process:
            stopped = threading.Timer(60, process.kill)  # then nothing more comes, and the test's own limit ends it
            stopped.start()
            digest, sleeps = consume(mmap.mmap(fd, 0), bell, doorbell, count)
            sent, _ = process.communicate(timeout=30)
            stopped.cancel()
            stopped.join()
    finally:
        for file in (fd, bell, doorbell):
            os.close(file)
    assert digest == sent.strip()
    print(json.dumps({"ring": size, "sleeps of the reader": sleeps}))
