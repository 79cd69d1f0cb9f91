"""Waiting that a signal handler may interrupt anywhere, and that wakes in time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from netq.io.condition import LONGEST, Condition

LIMIT = 20.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def asleep(condition: Condition, count: int) -> None:
    """Wait until so many wait."""
    while len(condition._waiters) < count:
        threading.Event().wait(0.001)


def test_a_true_predicate_is_not_waited_for() -> None:
    condition = Condition()
    assert condition.wait(lambda: True, 0)
    assert not condition.wait(lambda: False, 0)
    assert not condition.wait(lambda: False, -1)
    assert condition._waiters == []


def test_all_waiting_threads_test_their_predicates_again(pool: ThreadPoolExecutor) -> None:
    condition, looks, come = Condition(), [0, 0, 0], threading.Event()

    def look(n: int) -> bool:
        looks[n] += 1
        return come.is_set()

    waiting = [pool.submit(condition.wait, lambda n=n: look(n), LIMIT) for n in range(3)]  # type: ignore[misc]
    asleep(condition, 3)
    come.set()
    condition.notify()
    assert all(future.result(LIMIT / 2) for future in waiting)
    assert all(looks)
    assert condition._waiters == []


@pytest.mark.slow
def test_a_change_without_notify_is_seen_within_a_second(pool: ThreadPoolExecutor) -> None:
    condition, come = Condition(), threading.Event()
    waiting = pool.submit(condition.wait, come.is_set, LIMIT)
    asleep(condition, 1)
    come.set()
    assert waiting.result(LONGEST + LIMIT / 2)


def test_a_handler_may_wait_for_the_same_bell(monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor) -> None:
    condition, come, handled = Condition(), threading.Event(), list[bool]()
    before = signal.signal(signal.SIGALRM, lambda number, frame: handled.append(condition.wait(come.is_set, LIMIT)))

    def ring() -> None:
        asleep(condition, 2)  # the interrupted wait, and the handler's
        come.set()
        condition.notify()

    try:
        ringing = pool.submit(ring)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert condition.wait(come.is_set, LIMIT)
        ringing.result(LIMIT)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert handled == [True]


def test_an_interrupted_thread_is_not_a_waiter_any_more() -> None:
    condition = Condition()

    def interrupt() -> bool:
        raise KeyboardInterrupt

    looks: Iterator[Callable[[], bool]] = iter([lambda: False, interrupt])
    with pytest.raises(KeyboardInterrupt):
        condition.wait(lambda: next(looks)(), LIMIT)
    assert condition._waiters == []
