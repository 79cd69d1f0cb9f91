"""The adaptive size of what a link hands to its socket at once."""

from __future__ import annotations

import pytest

from netq.runtime.send_batch import MAX_BATCH, MIN_BATCH, MIN_PERIOD, QUEUE_TIME, SendBatch


def carry(batch: SendBatch, rate: float, seconds: float, now: float = 0.0) -> float:
    """Let a socket that is always full take `rate` bytes a second; return the time at the end."""
    batch.full(now)
    end = now + seconds
    while now < end:
        now += MIN_PERIOD
        batch.sent(int(rate * MIN_PERIOD))
        batch.full(now)
    return now


def test_batch_doubles_while_the_socket_takes_all() -> None:
    batch, batches = SendBatch(), []
    for _ in range(10):
        batches.append(batch.size)
        batch.sent(batch.size)
        batch.drained()
    assert batches[:8] == [MIN_BATCH * 2**n for n in range(8)]
    assert batches[8:] == [MAX_BATCH, MAX_BATCH]


def test_small_messages_leave_the_batch_as_it_is() -> None:
    batch = SendBatch()
    for _ in range(1000):
        batch.sent(MIN_BATCH - 1)
        batch.drained()
    assert batch.size == MIN_BATCH


def test_batch_follows_the_rate_of_the_link() -> None:
    slow, fast, between = SendBatch(), SendBatch(), SendBatch()
    carry(slow, 125_000, 1.0)
    carry(fast, 1e9, 0.1)
    carry(between, 10e6, 1.0)
    assert (slow.size, fast.size) == (MIN_BATCH, MAX_BATCH)
    assert between.size == pytest.approx(10e6 * QUEUE_TIME, rel=0.01)


def test_batch_follows_a_rate_that_changes() -> None:
    batch = SendBatch()
    now = carry(batch, 1e9, 0.1)
    now = carry(batch, 125_000, 1.0, now)
    assert batch.size == MIN_BATCH
    carry(batch, 1e9, 0.1, now)
    assert batch.size == MAX_BATCH


def test_idle_time_is_not_measured() -> None:
    batch = SendBatch()
    now = carry(batch, 1e9, 0.1)
    batch.drained()
    batch.sent(1000)
    batch.full(now + 3600.0)
    batch.full(now + 3600.0 + MIN_PERIOD / 2)
    assert batch.size == MAX_BATCH
