"""The bytes of the last 60 minutes, and what another round adds to them."""

from __future__ import annotations

from edge.traffic import Traffic

MB = 10**6


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_without_messages_there_is_no_traffic() -> None:
    traffic = Traffic()
    assert (traffic.after_task(), traffic.after_round()) == (0, 0)


def test_another_round_is_as_large_as_the_largest_parts_so_far() -> None:
    traffic = Traffic()
    traffic.received(4 * MB)
    assert (traffic.after_task(), traffic.after_round()) == (4, 8)
    traffic.sent(1 * MB)
    assert (traffic.after_task(), traffic.after_round()) == (6, 10)
    traffic.received(3 * MB)
    traffic.sent(2 * MB)
    assert (traffic.after_task(), traffic.after_round()) == (12, 16)


def test_messages_are_forgotten_after_an_hour() -> None:
    clock = Clock()
    traffic = Traffic(clock)
    traffic.received(4 * MB)
    clock.now += 1800
    traffic.sent(1 * MB)
    clock.now += 1799
    assert traffic.after_round() == 10
    clock.now += 1
    assert traffic.after_round() == 6  # the task is forgotten; its size is still expected
    clock.now += 1800
    assert traffic.after_round() == 5
