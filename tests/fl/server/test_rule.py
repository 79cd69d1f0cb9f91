"""When a round is complete, in numbers."""

from __future__ import annotations

import math

import pytest

from fl.server.rule import RoundRule, RoundState

TRAIN = RoundRule(enough=3, needed=2, close_early=True)
EVALUATE = RoundRule(enough=4, needed=2, needs_own=True, close_early=True)
BUFFER = RoundRule(needed=1, buffer=5)


def progress(
    waiting: int = 0,
    in_time: int = 0,
    late: int = 0,
    overdue: float = math.inf,
    *,
    updates: int = 0,
) -> RoundState:
    return RoundState(waiting, in_time, in_time + late, updates, overdue)


@pytest.mark.parametrize(
    ("found", "is_complete"),
    [
        (progress(waiting=4), False),
        (progress(waiting=2, in_time=2), False),  # two more may make it enough
        (progress(waiting=1, in_time=3), True),  # enough
        (progress(waiting=2, in_time=2, late=5), False),  # late answers are none of its own
        (progress(in_time=2), True),  # all have answered, and there are as many as needed
        (progress(in_time=1), False),  # another client may make it two
        (progress(in_time=1, late=1), True),
        (progress(waiting=2, in_time=2, overdue=10.0), True),  # the others are overdue
        (progress(waiting=2, in_time=2, overdue=10.5), False),
        (progress(waiting=3, in_time=1, overdue=10.0), False),  # overdue, and needed
    ],
)
def test_a_training_ends(found: RoundState, *, is_complete: bool) -> None:
    assert TRAIN.is_complete(found, now=10.0) is is_complete


@pytest.mark.parametrize(
    ("found", "is_complete"),
    [
        (progress(waiting=1, in_time=3), False),  # it waits for all
        (progress(in_time=1), True),  # it waits for no others
        (progress(waiting=1, in_time=3, overdue=10.0), True),
        (progress(waiting=3, in_time=1, overdue=10.0), False),
    ],
)
def test_an_evaluation_ends(found: RoundState, *, is_complete: bool) -> None:
    assert EVALUATE.is_complete(found, now=10.0) is is_complete


@pytest.mark.parametrize("updates", [4, 5, 6])
def test_an_asynchronous_round_ends_after_its_updates(updates: int) -> None:
    assert BUFFER.is_complete(progress(updates=updates), now=10.0) is (updates >= 5)
    assert not BUFFER.has_enough(9)


@pytest.mark.parametrize(
    ("now", "overdue", "look"), [(0.0, 5.0, 5.0), (5.0, 5.0, 30.0), (0.0, math.inf, 30.0), (0.0, 40.0, 30.0)]
)
def test_it_looks_again_when_clients_are_overdue(now: float, overdue: float, look: float) -> None:
    assert TRAIN.next_look(progress(overdue=overdue), deadline=30.0, now=now) == look
