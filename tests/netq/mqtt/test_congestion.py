"""Congestion control: packets shrink with queueing delay, grow without it, and ignore a long round trip."""

from __future__ import annotations

from collections import deque

import pytest

from netq.mqtt.congestion import _MAX_CLIENTS, INITIAL_SIZE, MAX_WAIT, MIN_SIZE, PERIOD, CongestionControl, InitialSizes

MOST = 256 * 1024
PACKETS = 200


def sent(congestion: CongestionControl, number: int, size: int, now: float) -> bool:
    """Send a packet; return whether a probe is due."""
    congestion.sent(number, size)
    return congestion.should_probe(now, stopped=False)


def grown() -> CongestionControl:
    """A congestion control at its maximum size, at second 1, after packet 9."""
    congestion = CongestionControl(MOST)
    for number in range(1, 10):
        sent(congestion, number, congestion.size, number / 10)
        congestion.acked(number, number / 10 + 0.01)
    assert congestion.at_max_size
    return congestion


def played(rate: float, delay: float, first: int = INITIAL_SIZE) -> tuple[CongestionControl, float, float]:
    """Send as much as is allowed, 8 packets at most, over a path of `rate` bytes/s and a round trip of `delay` seconds.

    Return the congestion control, the seconds of the last packet in flight, and the longest of a packet alone.
    """
    congestion, now, free, number, seconds, longest = CongestionControl(MOST, first), 0.0, 0.0, 0, 0.0, 0.0
    flying: deque[tuple[float, int, float]] = deque()  # acknowledged when, number, sent when
    while number < PACKETS:
        if congestion.open and len(flying) < 8:
            number += 1
            size = congestion.size if number > 1 else 100  # the first is a greeting
            sent(congestion, number, size, now)
            free = max(free, now) + size / rate
            longest = max(longest, size / rate)
            flying.append((free + delay, number, now))
        else:
            now, acked, left = flying.popleft()
            congestion.acked(acked, now)
            seconds = now - left
    return congestion, seconds, longest


def test_first_packets_are_small_and_double() -> None:
    congestion, sizes, now = CongestionControl(MOST), [], 0.0
    while not congestion.at_max_size:
        sizes.append(congestion.size)
        assert sent(congestion, len(sizes), congestion.size, now)
        assert not congestion.open, "one at a time"
        congestion.acked(len(sizes), now + 0.001)
        now += 0.001
    assert sizes == [INITIAL_SIZE, 2 * INITIAL_SIZE, 4 * INITIAL_SIZE, 8 * INITIAL_SIZE]
    assert sent(congestion, 9, congestion.size, now + PERIOD)
    assert congestion.open


@pytest.mark.parametrize(
    ("rate", "first"), [(2_000, INITIAL_SIZE), (6_000, INITIAL_SIZE), (500, MIN_SIZE), (50_000, INITIAL_SIZE)]
)
def test_packets_on_a_slow_path_stay_below_the_timeout(rate: int, first: int) -> None:
    congestion, _, longest = played(rate, 0.5, first)
    assert longest <= max(first / rate, 4 * MAX_WAIT) < 10.0, "seconds"
    assert congestion.size < 2 * INITIAL_SIZE


def test_link_without_acks_makes_the_next_start_smaller() -> None:
    starts, congestion = InitialSizes(), CongestionControl(MOST)
    sent(congestion, 1, 100, 0.0)
    congestion.acked(1, 0.1)
    starts.record("a", congestion)
    assert starts.get("a") == INITIAL_SIZE, "it had nothing to get through"
    sent(congestion, 2, INITIAL_SIZE, 1.0)
    starts.record("a", congestion)
    assert starts.get("a") == INITIAL_SIZE // 4 == MIN_SIZE
    assert starts.get("b") == INITIAL_SIZE
    starts.record("a", CongestionControl(MOST, MIN_SIZE))
    assert starts.get("a") == MIN_SIZE, "it says nothing"
    congestion = CongestionControl(MOST, starts.get("a"))
    sent(congestion, 1, MIN_SIZE, 0.0)
    starts.record("a", congestion)
    assert starts.get("a") == MIN_SIZE
    congestion.acked(1, 9.0)
    starts.record("a", congestion)
    assert starts.get("a") == INITIAL_SIZE


def test_initial_sizes_are_bounded() -> None:
    starts, stuck = InitialSizes(), CongestionControl(MOST)
    sent(stuck, 1, INITIAL_SIZE, 0.0)
    for number in range(_MAX_CLIENTS + 1):
        starts.record(str(number), stuck)
    assert [starts.get(str(number)) for number in (0, 1, _MAX_CLIENTS)] == [INITIAL_SIZE, MIN_SIZE, MIN_SIZE]


def test_one_probe_at_a_time_and_more_when_stopped() -> None:
    congestion = grown()
    assert sent(congestion, 10, MOST, 2.0)
    assert not congestion.should_probe(2.5, stopped=True)
    assert not sent(congestion, 11, MOST, 3.0)
    congestion.acked(10, 3.1)
    assert not congestion.should_probe(3.1, stopped=False)
    assert congestion.should_probe(3.1, stopped=True)
    congestion.acked(11, 3.2)
    assert not congestion.should_probe(9.0, stopped=True), "nothing is in flight"


def test_size_grows_until_maximum_or_late() -> None:
    congestion = CongestionControl(MOST)
    assert congestion.growing
    sent(congestion, 1, INITIAL_SIZE, 1.0)
    congestion.acked(1, 3.0)
    sent(congestion, 2, INITIAL_SIZE, 3.1)
    assert congestion.growing
    congestion.acked(2, 7.0)
    assert not congestion.growing
    assert not congestion.at_max_size
    assert not grown().growing
    assert grown().at_max_size


@pytest.mark.parametrize("rate", [80_000, 125_000, 1_000_000])
def test_size_shrinks_until_the_queue_is_short(rate: int) -> None:
    congestion, seconds, _ = played(rate, 0.05)
    assert not congestion.at_max_size
    assert congestion.size == MIN_SIZE or seconds < 2 * MAX_WAIT


@pytest.mark.parametrize("delay", [0.001, 0.2, 3.0])
def test_long_round_trip_is_not_congestion(delay: float) -> None:
    assert played(1e9, delay)[0].at_max_size


def test_few_small_packets_are_not_measured() -> None:
    congestion = CongestionControl(MOST)
    sent(congestion, 1, 100, 0.0)
    congestion.acked(1, 0.01)
    assert not sent(congestion, 2, 100, 1.0)
    assert not sent(congestion, 3, INITIAL_SIZE // 3, 1.0)
    assert sent(congestion, 4, INITIAL_SIZE // 3, 1.0)
    assert congestion.open
    assert not sent(congestion, 5, INITIAL_SIZE // 3 + 1, 1.0)
    assert not congestion.open
    congestion.acked(4, 1.1)
    assert congestion.open, "some of it has arrived"


def test_size_grows_again_without_queueing() -> None:
    congestion, _, _ = played(50_000, 0.01)
    congestion.acked(PACKETS, 1000.0)
    small = congestion.size
    for number in range(2000, 2010):
        assert sent(congestion, number, congestion.size, number)
        congestion.acked(number, number + MAX_WAIT / 4)
    assert small < congestion.size
    assert congestion.at_max_size


def test_longer_round_trip_is_learned() -> None:
    congestion, _, _ = played(1e9, 0.001)
    now = 1000.0
    for number in range(1000, 1100):
        if sent(congestion, number, congestion.size, now):
            congestion.acked(number, now + 2.0)
        now += 2.1
    assert congestion.at_max_size


def test_one_measurement_at_a_time() -> None:
    congestion = grown()
    assert sent(congestion, 11, MOST, 2.0)
    congestion.acked(11, 2.1)
    assert not sent(congestion, 12, MOST, 2.1)
    assert sent(congestion, 13, MOST, 2.1 + PERIOD)
    assert not sent(congestion, 14, MOST, 3.0)
    congestion.acked(12, 3.0)
    assert not sent(congestion, 15, MOST, 3.0)


def test_max_wait_bounds_the_queueing_delay() -> None:
    congestion = CongestionControl(MOST, max_wait=0.2)
    sent(congestion, 1, 100, 0.0)
    congestion.acked(1, 0.01)
    sent(congestion, 2, INITIAL_SIZE, 1.0)
    congestion.acked(2, 1.3)
    assert congestion.size < INITIAL_SIZE
