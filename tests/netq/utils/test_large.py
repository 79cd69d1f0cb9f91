"""Large bytes in pickles: they are not copied by `dump`, and arrive as what they were."""

from __future__ import annotations

import pickle
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from netq.buffers import copy, use_huge_pages
from netq.errors import Unreadable
from netq.utils import large
from netq.utils.stream import BytesSerializer, PickleSerializer, Stream

SIZE = 5 * 1024 * 1024 + 3  # above all thresholds, and no multiple of a page
BYTES = np.random.default_rng(0).bytes(SIZE)
SERIALIZERS = {
    "trusting": PickleSerializer(),
    "data": PickleSerializer(PickleSerializer.allow_by_name("numpy")),
    "with a hook": PickleSerializer(dump=lambda value: None, load=lambda pid: pid),
}


def received(stream: Stream, pieces: int = 1) -> Stream:
    """Return what a peer gets: the bytes in so many writable blocks."""
    whole = bytearray(bytes(stream))
    step = -(-len(whole) // pieces) or 1
    return Stream([whole[start : start + step] for start in range(0, len(whole), step)])


@pytest.mark.parametrize("pieces", [1, 5])
@pytest.mark.parametrize("serializer", SERIALIZERS.values(), ids=SERIALIZERS)
@pytest.mark.parametrize("size", [0, 100, large.LARGE - 1, large.LARGE, large.LARGE + 1, 3 * large.LARGE, SIZE])
def test_bytes_arrive_as_they_were(size: int, serializer: PickleSerializer, pieces: int) -> None:
    sent = [BYTES[:size], {"b": bytearray(BYTES[:size])}, (BYTES[:size], "text"), "x" * size, size]
    there = serializer.load(received(serializer.dump(sent), pieces))
    assert there == sent
    assert [type(value) for value in there] == [type(value) for value in sent]
    assert type(there[1]["b"]) is bytearray
    there[1]["b"].append(1)


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("serializer", SERIALIZERS.values(), ids=SERIALIZERS)
def test_dump_does_not_copy(serializer: PickleSerializer, kind: Callable[[bytes], Any]) -> None:
    value = kind(BYTES)
    sent = serializer.dump({"a": [1, value]})
    assert any(buffer.obj is value for buffer in sent.buffers)


def test_same_object_is_sent_once_and_arrives_as_one() -> None:
    for serializer in SERIALIZERS.values():
        sent = serializer.dump([BYTES, BYTES])
        assert sent.nbytes < SIZE + 1000
        one, two = serializer.load(received(sent))
        assert one is two


def test_message_is_a_pickle_of_python() -> None:
    value = [BYTES, bytearray(BYTES), "x" * 100_000, list(range(50_000))]
    sent = PickleSerializer().dump(value)
    assert pickle.loads(bytes(sent)[16:]) == value


@pytest.mark.parametrize("pieces", [1, 5])
@pytest.mark.parametrize("serializer", SERIALIZERS.values(), ids=SERIALIZERS)
def test_arrays_and_bytes_together_with_into(serializer: PickleSerializer, pieces: int) -> None:
    array, target = np.arange(1000.0), np.zeros(1000)
    into: Any = target
    message = received(serializer.dump([BYTES, array, bytearray(BYTES)]), pieces)
    there = serializer.load_into(message, [memoryview(into).cast("B")])
    assert (there[0], there[2]) == (BYTES, BYTES)
    assert np.shares_memory(there[1], target)
    assert np.array_equal(target, array)


@pytest.mark.parametrize("serializer", SERIALIZERS.values(), ids=SERIALIZERS)
def test_truncated_message_is_unreadable(serializer: PickleSerializer) -> None:
    whole = bytes(serializer.dump([BYTES, 1]))
    for stop in (20, 100, SIZE // 2, len(whole) - 1):
        with pytest.raises(Unreadable):
            serializer.load(Stream([bytearray(whole[:stop])]))
    short = bytearray(whole[: SIZE // 2])
    short[:8] = (len(short) - 16).to_bytes(8, "little")  # the head agrees, the pickle announces more
    with pytest.raises(Unreadable):
        serializer.load(Stream([short]))


def test_bytes_serializer() -> None:
    for size in (0, 10, SIZE):
        for pieces in (1, 3):
            there = BytesSerializer().load(received(Stream([BYTES[:size]]), pieces))
            assert type(there) is bytes
            assert there == BYTES[:size]


def test_dump_within_dump_and_in_threads() -> None:
    serializer = PickleSerializer()

    def inner() -> bytes:
        return bytes(serializer.dump({"inner": [1, BYTES[:10]]}))

    class Nested:
        def __reduce__(self) -> tuple[Any, ...]:
            return bytes, (inner(),)

    def check(number: int) -> None:
        sent = [number, Nested(), {"x": np.full(3, number)}]
        there = serializer.load(received(serializer.dump(sent)))
        assert (there[0], there[1], there[2]["x"].tolist()) == (number, inner(), [number] * 3)

    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(check, range(1200)))) == 1200


def test_failed_dump_does_not_spoil_the_next_one() -> None:
    serializer = PickleSerializer()
    for _ in range(3):
        with pytest.raises((TypeError, pickle.PicklingError, AttributeError)):
            serializer.dump([1, threading.Lock()])
        assert serializer.load(serializer.dump([2])) == [2]


def test_dump_keeps_nothing_of_a_message() -> None:
    class Value:
        pass

    serializer, value = PickleSerializer(dump=lambda obj: "it" if type(obj) is Value else None, load=str), Value()
    gone = weakref.ref(value)
    serializer.dump([value])
    del value
    assert gone() is None


def test_copy_of_read_only_and_small_memory() -> None:
    for size in (0, 1, SIZE):
        target = bytearray(size)
        copy(memoryview(target), memoryview(BYTES[:size]))
        assert target == BYTES[:size]
        again = bytearray(size)
        use_huge_pages(memoryview(again))
        copy(memoryview(again), memoryview(target))
        assert again == target
