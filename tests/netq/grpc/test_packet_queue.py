"""Packets between two threads: in order, bounded, and nobody sleeps while there is something for him."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from netq.grpc.packet_queue import PacketQueue
from netq.testing.fixtures import LIMIT


class Calls:
    def __init__(self) -> None:
        self.taker = self.giver = 0

    def belt(self) -> PacketQueue:
        return PacketQueue(self.wake_taker, self.wake_giver)

    def wake_taker(self) -> None:
        self.taker += 1

    def wake_giver(self) -> None:
        self.giver += 1


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_packets_come_out_in_order(calls: Calls) -> None:
    belt = calls.belt()
    for packet in (b"a", b"", b"b"):
        belt.give(packet)
    assert [belt.take() for _ in range(4)] == [b"a", b"", b"b", None]


def test_the_taker_is_woken_once_and_again_only_after_it_found_nothing(calls: Calls) -> None:
    belt = calls.belt()
    belt.give(b"a")
    belt.give(b"b")
    assert calls.taker == 1
    assert belt.take() == b"a"
    belt.give(b"c")
    assert calls.taker == 1
    assert [belt.take() for _ in range(3)] == [b"b", b"c", None]
    belt.give(b"d")
    assert calls.taker == 2


def test_it_is_full_above_the_limit_until_what_was_taken_is_dealt_with(calls: Calls) -> None:
    belt = calls.belt()
    belt.give(bytes(10))
    assert not belt.full(10)
    belt.give(bytes(1))
    assert belt.full(10)
    belt.take()
    assert belt.full(10), "taken, and not dealt with"
    belt.taken(10)
    assert not belt.full(10)


def test_the_giver_is_woken_only_if_it_has_found_the_belt_full(calls: Calls) -> None:
    belt = calls.belt()
    belt.give(bytes(11))
    belt.taken(1)
    assert calls.giver == 0
    assert belt.full(9)
    belt.taken(5)
    belt.taken(5)
    assert calls.giver == 1


@pytest.mark.slow
def test_two_threads_that_sleep_whenever_they_may_pass_everything_on_in_order() -> None:
    """Each sleeps on an event that only the belt sets: one wake that is lost, and it never ends."""
    data, room = threading.Event(), threading.Event()
    belt = PacketQueue(data.set, room.set)
    count, most, got = 100_000, 0, []

    def sleep_until(ready: Callable[[], bool], event: threading.Event) -> None:
        while not ready():
            assert event.wait(LIMIT), "nobody has woken it"
            event.clear()

    def take() -> None:
        for _ in range(count):
            packet: list[bytes] = []
            sleep_until(lambda packet=packet: _taken(belt, packet), data)  # type: ignore[misc]
            got.append(packet[0])
            belt.taken(len(packet[0]))

    taker = threading.Thread(target=take)
    taker.start()
    for number in range(count):
        sleep_until(lambda: not belt.full(64), room)
        belt.give(number.to_bytes(8, "little"))
        most = max(most, belt._given - belt._taken)
    taker.join(LIMIT)
    assert got == [number.to_bytes(8, "little") for number in range(count)]
    assert most <= 64 + 8


def _taken(belt: PacketQueue, packet: list[bytes]) -> bool:
    taken = belt.take()
    if taken is not None:
        packet.append(taken)
    return bool(packet)
