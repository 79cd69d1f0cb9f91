"""Which clients a round waits for."""

from __future__ import annotations

import pytest

from fl.server.standing import Standing
from tests.fl.federation import A, B, C, D

DEADLINE = 10.0


@pytest.fixture
def standing() -> Standing:
    return Standing(3, DEADLINE)


def suspend(standing: Standing, *clients: object) -> None:
    for _ in range(3):
        for client in clients:
            standing.missed(client)  # type: ignore[arg-type]


def turns_with(standing: Standing, client: object, count: int) -> list[int]:
    """Return the turns in which a client gets a task and misses it."""
    found = []
    for turn in range(1, count + 1):
        if client in standing.candidates([A, B], 1).retried:
            found.append(turn)
            standing.missed(client)  # type: ignore[arg-type]
    return found


def test_a_client_is_suspended_after_tasks_without_a_good_answer(standing: Standing) -> None:
    assert [standing.missed(A) for _ in range(3)] == [False, False, True]
    assert standing.suspended() == [A]
    assert standing.candidates([A, B], 1) == ([B], [])


def test_a_good_answer_starts_the_count_again(standing: Standing) -> None:
    for _ in range(3):
        assert not standing.missed(A)
        assert not standing.missed(A)
        standing.answered(A, 1.0)
    assert standing.candidates([A], 1) == ([A], [])


def test_pauses_of_a_suspended_client_double(standing: Standing) -> None:
    suspend(standing, A)
    assert turns_with(standing, A, 300) == [4, 12, 28, 60, 124, 188, 252]


def test_suspended_clients_are_asked_if_the_others_are_too_few(standing: Standing) -> None:
    suspend(standing, A, C)
    standing.missed(C)
    standing.missed(D)
    assert standing.candidates([A, B, C, D], 2) == ([B, D], [])
    assert standing.candidates([A, B, C, D], 3) == ([B, D, A], [])  # C has missed more
    assert standing.candidates([A, B, C, D], 9).regular == [B, D, A, C]


def test_a_repeated_round_prefers_clients_that_have_just_answered(standing: Standing) -> None:
    standing.missed(A)
    assert standing.candidates([A, B, C], 2) == ([A, B, C], [])
    assert standing.candidates([A, B, C], 2, again=True) == ([B, C], [A])
    assert standing.candidates([A, B, C], 3, again=True) == ([B, C, A], [])


@pytest.mark.parametrize(("seconds", "is_restored"), [(DEADLINE, True), (DEADLINE + 1, False)])
def test_a_late_answer_restores_a_client_that_is_fast_enough(
    standing: Standing, seconds: float, is_restored: bool
) -> None:
    suspend(standing, A)
    standing.answered_late(A, seconds)
    assert standing.is_suspended(A) is not is_restored
    assert (standing.expected(A) > 0) is is_restored


def test_a_new_session_and_absence_restore(standing: Standing) -> None:
    suspend(standing, A, B, C)
    standing.forget(A)
    standing.keep([A, B])
    assert standing.suspended() == [B]


def test_log_has_one_line_for_each_suspension(standing: Standing, caplog: pytest.LogCaptureFixture) -> None:
    suspend(standing, A)
    standing.missed(A)
    assert caplog.messages == [
        f"{A}: suspended: no good answer to its last 3 tasks; it gets the next one in 4 rounds at the latest"
    ]


def test_a_client_is_expected_after_some_times_its_last_answer(standing: Standing) -> None:
    assert standing.expected(A) == 0
    standing.missed(A)
    assert standing.expected(A) == 0
    standing.answered(A, 1.0)
    assert standing.expected(A) == 4.0
    standing.answered(A, 9.0)
    assert standing.expected(A) == DEADLINE
    standing.missed(A)
    assert standing.expected(A) == DEADLINE
