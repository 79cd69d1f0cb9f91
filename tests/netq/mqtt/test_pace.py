"""Packets shrink where they wait, grow where they do not, and a way that is merely long is not a slow one."""

from __future__ import annotations

from collections import deque

import pytest

from netq.mqtt.pace import LATE, LEAST, PERIOD, SOON, Pace

MOST = 256 * 1024
PACKETS = 200


def played(rate: float, delay: float) -> tuple[Pace, float]:
    """Send as much as is allowed, 8 packets at most, over a way of `rate` bytes a second and `delay` seconds there and
    back. Return the pace, and how long the last packet was on its way.
    """
    pace, now, free, number, seconds = Pace(MOST), 0.0, 0.0, 0, 0.0
    flying: deque[tuple[float, int, float]] = deque()  # acknowledged when, number, sent when
    while number < PACKETS:
        if pace.open and len(flying) < 8:
            number += 1
            size = pace.size if number > 1 else 100  # the first is a greeting
            pace.sent(number, size, now)
            free = max(free, now) + size / rate
            flying.append((free + delay, number, now))
        else:
            now, acked, left = flying.popleft()
            pace.acked(acked, now)
            seconds = now - left
    return pace, seconds


def test_one_packet_is_the_first_and_once_it_was_measured_there_are_more() -> None:
    pace = Pace(MOST)
    assert pace.sent(1, 100, 0.0)
    pace.acked(1, 0.01)
    assert pace.open
    assert pace.sent(2, MOST, 1.0)
    assert not pace.open
    pace.acked(2, 1.02)
    assert pace.sent(3, MOST, 2.0)
    assert pace.open
    assert pace.full


@pytest.mark.parametrize("rate", [80_000, 125_000, 1_000_000])
def test_packets_shrink_until_little_waits(rate: int) -> None:
    pace, seconds = played(rate, 0.05)
    assert not pace.full
    assert pace.size == LEAST or seconds < 2 * LATE


@pytest.mark.parametrize("delay", [0.001, 0.2, 3.0])
def test_a_long_way_is_not_a_slow_one(delay: float) -> None:
    assert played(1e9, delay)[0].full


def test_small_packets_say_nothing_of_the_rate_until_they_are_many() -> None:
    pace = Pace(MOST)
    pace.sent(1, 100, 0.0)
    pace.acked(1, 0.01)
    assert not pace.sent(2, 100, 1.0)
    assert not pace.sent(3, MOST // 3, 1.0)
    assert pace.sent(4, MOST // 3, 1.0)
    assert pace.open
    assert pace.sent(5, MOST // 3 + 1, 1.0)  # shut: nobody is to wait for an acknowledgement that nobody asked for
    assert not pace.open


def test_packets_grow_again_when_nothing_waits_any_more() -> None:
    pace, _ = played(50_000, 0.01)
    pace.acked(PACKETS, 1000.0)
    small = pace.size
    for number in range(2000, 2010):
        assert pace.sent(number, pace.size, number)
        pace.acked(number, number + SOON / 2)
    assert small < pace.size
    assert pace.full


def test_a_way_that_has_become_longer_is_not_slow_for_ever() -> None:
    pace, _ = played(1e9, 0.001)
    now = 1000.0
    for number in range(1000, 1100):
        if pace.sent(number, pace.size, now):
            pace.acked(number, now + 2.0)
        now += 2.1
    assert pace.full


def test_one_measurement_at_a_time() -> None:
    pace = Pace(MOST)
    assert pace.sent(1, MOST, 0.0)
    pace.acked(1, 0.1)
    assert not pace.sent(2, MOST, 0.1)
    assert pace.sent(3, MOST, 0.1 + PERIOD)
    assert not pace.sent(4, MOST, 1.0)
    pace.acked(2, 1.0)
    assert not pace.sent(5, MOST, 1.0)
