"""How much a link hands to its socket at once."""

from __future__ import annotations

import pytest

from netq.tcp.send_batch import LEAST, MOST, PERIOD, QUEUED, SendBatch


def carry(pace: SendBatch, rate: float, seconds: float, now: float = 0.0) -> float:
    """Let a socket that is full all the time take `rate` bytes a second; return the time."""
    pace.full(now)
    end = now + seconds
    while now < end:
        now += PERIOD
        pace.sent(int(rate * PERIOD))
        pace.full(now)
    return now


def test_a_socket_that_takes_all_gets_twice_as_much_up_to_the_most() -> None:
    pace, batches = SendBatch(), []
    for _ in range(10):
        batches.append(pace.batch)
        pace.sent(pace.batch)
        pace.drained()
    assert batches[:8] == [LEAST * 2**n for n in range(8)]
    assert batches[8:] == [MOST, MOST]


def test_small_messages_change_nothing() -> None:
    pace = SendBatch()
    for _ in range(1000):
        pace.sent(LEAST - 1)
        pace.drained()
    assert pace.batch == LEAST


def test_a_slow_link_is_given_the_least_and_a_fast_one_the_most() -> None:
    slow, fast, between = SendBatch(), SendBatch(), SendBatch()
    carry(slow, 125_000, 1.0)
    carry(fast, 1e9, 0.1)
    carry(between, 10e6, 1.0)
    assert (slow.batch, fast.batch) == (LEAST, MOST)
    assert between.batch == pytest.approx(10e6 * QUEUED, rel=0.01)


def test_a_link_that_becomes_slow_is_given_less_and_more_again_when_it_is_fast() -> None:
    pace = SendBatch()
    now = carry(pace, 1e9, 0.1)
    now = carry(pace, 125_000, 1.0, now)
    assert pace.batch == LEAST
    carry(pace, 1e9, 0.1, now)
    assert pace.batch == MOST


def test_an_idle_time_does_not_count_as_slowness() -> None:
    pace = SendBatch()
    now = carry(pace, 1e9, 0.1)
    pace.drained()
    pace.sent(1000)
    pace.full(now + 3600.0)
    pace.full(now + 3600.0 + PERIOD / 2)
    assert pace.batch == MOST
