"""The open loop, with echoes that the test times; and the search for the highest rate."""

from __future__ import annotations

import time
import uuid
from array import array
from collections import deque
from concurrent.futures import Future
from typing import cast

import pytest

from netq import Delivery, Message
from netq.bench import load, statistics, streaming
from netq.bench.client import Sides
from netq.bench.load import highest
from netq.bench.resources import Usage
from netq.bench.statistics import CLOSE, LEAST, MOST

MESSAGE = bytes(64)


class Echoing:
    """Gives back what is put, at once; but nothing from the `first` message on until `last` have been put."""

    def __init__(self, first: int = 0, last: int = 0) -> None:
        self._here: deque[bytes] = deque()
        self._first, self._last = first, last
        self.put_count = self.got_count = 0

    @property
    def end(self) -> streaming.Endpoint:
        return streaming.Endpoint(self.put, self.get)

    def put(self, data: bytes) -> Delivery:
        self.put_count += 1
        self._here.append(data)
        return cast(Delivery, Future[None]())

    def get(self, *, timeout: float | None = None) -> Message:
        stalled = self._first <= self.got_count < self._last and self.put_count < self._last
        if stalled or not self._here:
            assert timeout is not None, "it would wait for ever"
            raise TimeoutError
        self.got_count += 1
        return Message(uuid.UUID(int=0), self._here.popleft())


def test_every_message_is_sent_and_every_echo_counted() -> None:
    echoing = Echoing()
    latencies = load.send_at_rate(echoing.end, MESSAGE, 1e5, 500, limit=None)
    assert (echoing.put_count, echoing.got_count, len(latencies)) == (500, 500, 500)
    assert min(latencies) >= 0  # nothing is sent before it is due


def test_stall_counts_for_each_message_due_in_it() -> None:
    interval = 1e9 / 20_000
    latencies = load.send_at_rate(Echoing(first=10, last=60).end, MESSAGE, 20_000, 100, limit=None)
    for number in range(10, 60):  # the echo came when number 59 had been sent, which was not before it was due
        assert latencies[number] >= (59 - number) * interval - 1


class Late(Echoing):
    """Whose put of message 10 takes until 50 intervals after the first one."""

    def __init__(self, interval: float) -> None:
        super().__init__()
        self._interval = interval
        self._first_put = 0

    def put(self, data: bytes) -> Delivery:
        self._first_put = self._first_put or time.perf_counter_ns()
        while self.put_count == 10 and time.perf_counter_ns() < self._first_put + 50 * self._interval:
            continue
        return super().put(data)


def test_late_message_counts_from_its_due_time() -> None:
    interval = 1e9 / 20_000
    latencies = load.send_at_rate(Late(interval).end, MESSAGE, 20_000, 100, limit=None)
    for number in range(10, 50):
        assert latencies[number] >= (50 - number) * interval - 1


def test_try_ends_once_the_tail_exceeds_the_limit() -> None:
    echoing = Echoing()
    latencies = load.send_at_rate(echoing.end, MESSAGE, 1e6, 3000, limit=-1)
    assert len(latencies) == statistics.may_exceed(load.TAIL, 3000) + 1 == 4


def test_messages_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_IN_FLIGHT", 8)
    echoing = Echoing(first=0, last=8)
    assert len(load.send_at_rate(echoing.end, MESSAGE, 1e7, 100, limit=None)) == 100


def test_rate_holds_if_complete_and_tail_within_limit() -> None:
    used = Sides(Usage(0, None, None), Usage(0, None, None))
    times = array("q", [1] * 999 + [7])
    assert load.Try(1.0, 64, 1000, times, 1.0, used).holds(1)
    assert not load.Try(1.0, 64, 1000, times[:999], 1.0, used).holds(1)
    assert not load.Try(1.0, 64, 1000, array("q", [1] * 998 + [7] * 2), 1.0, used).holds(1)


@pytest.mark.parametrize("limit", [1.0, 1.5, 3.0, 900.0, 1000.0, 1001.0, 47_123.0, 9e6])
def test_search_finds_the_highest_rate_that_holds(limit: float) -> None:
    tried = []

    def holds(rate: float) -> bool:
        tried.append(rate)
        return rate <= limit

    found = highest(holds)
    assert found <= limit < found * CLOSE
    assert len(tried) < 25
    assert found in tried


def test_search_without_any_rate_returns_0() -> None:
    tried = []

    def holds(rate: float) -> bool:
        tried.append(rate)
        return False

    assert highest(holds) == 0
    assert tried[-1] == LEAST


def test_search_stops_at_the_highest_rate_tried() -> None:
    assert highest(lambda rate: rate <= MOST) == MOST


def test_search_ends_with_inconsistent_answers() -> None:
    moods = iter([True, True, False] * 100)
    assert highest(lambda rate: next(moods)) > 0
