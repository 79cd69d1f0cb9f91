"""The queue between two threads: packets keep their order, memory is bounded, and no wake-up is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from netq.grpc.packet_queue import PacketQueue
from netq.testing.fixtures import LIMIT


class Calls:
    def __init__(self) -> None:
        self.consumer = self.producer = 0

    def queue(self) -> PacketQueue:
        return PacketQueue(self.wake_consumer, self.wake_producer)

    def wake_consumer(self) -> None:
        self.consumer += 1

    def wake_producer(self) -> None:
        self.producer += 1


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_packets_keep_their_order(calls: Calls) -> None:
    queue = calls.queue()
    for packet in (b"a", b"", b"b"):
        queue.put(packet)
    assert [queue.take() for _ in range(4)] == [b"a", b"", b"b", None]


def test_consumer_is_woken_only_while_it_waits(calls: Calls) -> None:
    queue = calls.queue()
    queue.put(b"a")
    queue.put(b"b")
    assert calls.consumer == 1
    assert queue.take() == b"a"
    queue.put(b"c")
    assert calls.consumer == 1
    assert [queue.take() for _ in range(3)] == [b"b", b"c", None]
    queue.put(b"d")
    assert calls.consumer == 2


def test_queue_is_full_until_packets_are_processed(calls: Calls) -> None:
    queue = calls.queue()
    queue.put(bytes(10))
    assert not queue.is_full(10)
    queue.put(bytes(1))
    assert queue.is_full(10)
    queue.take()
    assert queue.is_full(10), "taken, but not processed"
    queue.processed(10)
    assert not queue.is_full(10)


def test_producer_is_woken_only_if_the_queue_was_full(calls: Calls) -> None:
    queue = calls.queue()
    queue.put(bytes(11))
    queue.processed(1)
    assert calls.producer == 0
    assert queue.is_full(9)
    queue.processed(5)
    queue.processed(5)
    assert calls.producer == 1


@pytest.mark.slow
def test_no_wakeup_is_lost_between_two_threads() -> None:
    """Each thread sleeps on an event that only the queue sets, so a lost wake-up fails the test."""
    data, room = threading.Event(), threading.Event()
    queue = PacketQueue(data.set, room.set)
    count, most, received = 100_000, 0, []

    def sleep_until(ready: Callable[[], bool], event: threading.Event) -> None:
        while not ready():
            assert event.wait(LIMIT), "a wake-up was lost"
            event.clear()

    def take() -> None:
        for _ in range(count):
            packet: list[bytes] = []
            sleep_until(lambda packet=packet: _taken(queue, packet), data)  # type: ignore[misc]
            received.append(packet[0])
            queue.processed(len(packet[0]))

    consumer = threading.Thread(target=take)
    consumer.start()
    for number in range(count):
        sleep_until(lambda: not queue.is_full(64), room)
        queue.put(number.to_bytes(8, "little"))
        most = max(most, queue._put - queue._processed)
    consumer.join(LIMIT)
    assert received == [number.to_bytes(8, "little") for number in range(count)]
    assert most <= 64 + 8


def _taken(queue: PacketQueue, packet: list[bytes]) -> bool:
    taken = queue.take()
    if taken is not None:
        packet.append(taken)
    return bool(packet)
