"""Packets shrink where they wait, grow where they do not, and a way that is merely long is not a slow one."""

from __future__ import annotations

from collections import deque

import pytest

from netq.mqtt.congestion import _REMEMBERED, FIRST, LATE, LEAST, PERIOD, CongestionControl, InitialSizes

MOST = 256 * 1024
PACKETS = 200


def sent(pace: CongestionControl, number: int, size: int, now: float) -> bool:
    """Send a packet; return whether its acknowledgement was asked for."""
    pace.sent(number, size)
    return pace.asks(now, stopped=False)


def grown() -> CongestionControl:
    """A pace at its best, at second 1, after packet 9."""
    pace = CongestionControl(MOST)
    for number in range(1, 10):
        sent(pace, number, pace.size, number / 10)
        pace.acked(number, number / 10 + 0.01)
    assert pace.full
    return pace


def played(rate: float, delay: float, first: int = FIRST) -> tuple[CongestionControl, float, float]:
    """Send as much as is allowed, 8 packets at most, over a way of `rate` bytes a second and `delay` seconds there and
    back. Return the pace, how long the last packet was on its way, and the longest that one alone took.
    """
    pace, now, free, number, seconds, longest = CongestionControl(MOST, first), 0.0, 0.0, 0, 0.0, 0.0
    flying: deque[tuple[float, int, float]] = deque()  # acknowledged when, number, sent when
    while number < PACKETS:
        if pace.open and len(flying) < 8:
            number += 1
            size = pace.size if number > 1 else 100  # the first is a greeting
            sent(pace, number, size, now)
            free = max(free, now) + size / rate
            longest = max(longest, size / rate)
            flying.append((free + delay, number, now))
        else:
            now, acked, left = flying.popleft()
            pace.acked(acked, now)
            seconds = now - left
    return pace, seconds, longest


def test_the_first_packets_are_small_and_each_that_is_answered_soon_doubles_them() -> None:
    pace, sizes, now = CongestionControl(MOST), [], 0.0
    while not pace.full:
        sizes.append(pace.size)
        assert sent(pace, len(sizes), pace.size, now)
        assert not pace.open, "one at a time"
        pace.acked(len(sizes), now + 0.001)
        now += 0.001
    assert sizes == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST]
    assert sent(pace, 9, pace.size, now + PERIOD)
    assert pace.open


@pytest.mark.parametrize(("rate", "first"), [(2_000, FIRST), (6_000, FIRST), (500, LEAST), (50_000, FIRST)])
def test_no_packet_of_a_slow_way_takes_as_long_as_silence_may_last(rate: int, first: int) -> None:
    pace, _, longest = played(rate, 0.5, first)
    assert longest <= max(first / rate, 4 * LATE) < 10.0, "seconds"
    assert pace.size < 2 * FIRST


def test_a_link_that_gets_nothing_through_has_the_next_begin_with_less() -> None:
    starts, pace = InitialSizes(), CongestionControl(MOST)
    sent(pace, 1, 100, 0.0)
    pace.acked(1, 0.1)
    starts.ended("a", pace)
    assert starts.of("a") == FIRST, "it had nothing to get through"
    sent(pace, 2, FIRST, 1.0)
    starts.ended("a", pace)
    assert starts.of("a") == FIRST // 4 == LEAST
    assert starts.of("b") == FIRST
    starts.ended("a", CongestionControl(MOST, LEAST))
    assert starts.of("a") == LEAST, "it says nothing"
    pace = CongestionControl(MOST, starts.of("a"))
    sent(pace, 1, LEAST, 0.0)
    starts.ended("a", pace)
    assert starts.of("a") == LEAST
    pace.acked(1, 9.0)
    starts.ended("a", pace)
    assert starts.of("a") == FIRST


def test_of_clients_whose_links_get_nothing_through_so_many_are_remembered() -> None:
    starts, stuck = InitialSizes(), CongestionControl(MOST)
    sent(stuck, 1, FIRST, 0.0)
    for number in range(_REMEMBERED + 1):
        starts.ended(str(number), stuck)
    assert [starts.of(str(number)) for number in (0, 1, _REMEMBERED)] == [FIRST, LEAST, LEAST]


def test_one_question_at_a_time_and_another_when_nothing_can_be_sent_before_its_answer() -> None:
    pace = grown()
    assert sent(pace, 10, MOST, 2.0)
    assert not pace.asks(2.5, stopped=True)
    assert not sent(pace, 11, MOST, 3.0)
    pace.acked(10, 3.1)
    assert not pace.asks(3.1, stopped=False)
    assert pace.asks(3.1, stopped=True)
    pace.acked(11, 3.2)
    assert not pace.asks(9.0, stopped=True), "nothing is on its way"


def test_a_pace_grows_until_it_is_full_or_late() -> None:
    pace = CongestionControl(MOST)
    assert pace.growing
    sent(pace, 1, FIRST, 1.0)
    pace.acked(1, 3.0)
    sent(pace, 2, FIRST, 3.1)
    assert pace.growing
    pace.acked(2, 7.0)
    assert not pace.growing
    assert not pace.full
    assert not grown().growing
    assert grown().full


@pytest.mark.parametrize("rate", [80_000, 125_000, 1_000_000])
def test_packets_shrink_until_little_waits(rate: int) -> None:
    pace, seconds, _ = played(rate, 0.05)
    assert not pace.full
    assert pace.size == LEAST or seconds < 2 * LATE


@pytest.mark.parametrize("delay", [0.001, 0.2, 3.0])
def test_a_long_way_is_not_a_slow_one(delay: float) -> None:
    assert played(1e9, delay)[0].full


def test_small_packets_say_nothing_of_the_rate_until_they_are_many() -> None:
    pace = CongestionControl(MOST)
    sent(pace, 1, 100, 0.0)
    pace.acked(1, 0.01)
    assert not sent(pace, 2, 100, 1.0)
    assert not sent(pace, 3, FIRST // 3, 1.0)
    assert sent(pace, 4, FIRST // 3, 1.0)
    assert pace.open
    assert not sent(pace, 5, FIRST // 3 + 1, 1.0)
    assert not pace.open
    pace.acked(4, 1.1)
    assert pace.open, "some of it has arrived"


def test_packets_grow_again_when_nothing_waits_any_more() -> None:
    pace, _, _ = played(50_000, 0.01)
    pace.acked(PACKETS, 1000.0)
    small = pace.size
    for number in range(2000, 2010):
        assert sent(pace, number, pace.size, number)
        pace.acked(number, number + LATE / 4)
    assert small < pace.size
    assert pace.full


def test_a_way_that_has_become_longer_is_not_slow_for_ever() -> None:
    pace, _, _ = played(1e9, 0.001)
    now = 1000.0
    for number in range(1000, 1100):
        if sent(pace, number, pace.size, now):
            pace.acked(number, now + 2.0)
        now += 2.1
    assert pace.full


def test_one_measurement_at_a_time() -> None:
    pace = grown()
    assert sent(pace, 11, MOST, 2.0)
    pace.acked(11, 2.1)
    assert not sent(pace, 12, MOST, 2.1)
    assert sent(pace, 13, MOST, 2.1 + PERIOD)
    assert not sent(pace, 14, MOST, 3.0)
    pace.acked(12, 3.0)
    assert not sent(pace, 15, MOST, 3.0)


def test_where_silence_is_noticed_soon_packets_are_to_wait_less() -> None:
    pace = CongestionControl(MOST, late=0.2)
    sent(pace, 1, 100, 0.0)
    pace.acked(1, 0.01)
    sent(pace, 2, FIRST, 1.0)
    pace.acked(2, 1.3)
    assert pace.size < FIRST
