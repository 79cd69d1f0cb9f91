"""Calls at a time to come."""

from __future__ import annotations

import math

from netq.io.timers import Timers


def test_due_timers_run_in_order_of_time_then_of_adding() -> None:
    timers, called = Timers(), list[str]()
    for when, name in ((3.0, "c"), (1.0, "a"), (1.0, "b"), (4.0, "d")):
        timers.add(when, called.append, (name,))
    assert timers.next == 1.0
    assert not timers.run(0.5)
    assert timers.run(3.0)
    assert (called, timers.next) == (["a", "b", "c"], 4.0)


def test_cancelled_timer_is_not_called_and_counts_as_run() -> None:
    timers, called = Timers(), list[str]()
    timer = timers.add(1.0, called.append, ("a",))
    timer.cancel()
    timer.cancel()
    assert timers.run(1.0)
    assert called == []


def test_timer_at_infinity_is_never_due() -> None:
    timers = Timers()
    timers.add(math.inf, print, ())
    assert (timers.next, len(timers), timers.run(1e300)) == (math.inf, 0, False)


def test_timer_may_add_another_that_is_due_at_once() -> None:
    timers, called = Timers(), list[str]()
    timers.add(1.0, lambda: timers.add(0.0, called.append, ("second",)), ())
    assert timers.run(1.0)
    assert called == ["second"]


def test_cancelled_timers_do_not_pile_up() -> None:
    timers = Timers()
    kept = timers.add(1e6, print, ())
    for number in range(10_000):
        timers.add(1e6 + number, print, ()).cancel()
    assert len(timers) <= 512
    assert kept.function is not None
