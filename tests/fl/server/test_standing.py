"""Which clients a round waits for."""

from __future__ import annotations

import pytest

from fl.server.member import Member
from fl.server.standing import Standing
from tests.fl.federation import IDS

A, B, C, D = MEMBERS = [Member(id) for id in IDS]
DEADLINE = 10.0


@pytest.fixture(autouse=True)
def unknown() -> None:
    """Forget what an earlier test has taught the members."""
    for member in MEMBERS:
        vars(member).update(vars(Member(member.id)))


@pytest.fixture
def standing() -> Standing:
    return Standing(3, DEADLINE)


def suspend(standing: Standing, *clients: Member) -> None:
    for _ in range(3):
        for client in clients:
            standing.missed(client)


def turns_with(standing: Standing, client: Member, count: int) -> list[int]:
    """Return the turns in which a client gets a task and misses it."""
    found = []
    for turn in range(1, count + 1):
        if client in standing.candidates([A, B], 1).retried:
            found.append(turn)
            standing.missed(client)
    return found


def test_a_client_is_suspended_after_tasks_without_a_good_answer(standing: Standing) -> None:
    assert [standing.missed(A) for _ in range(3)] == [False, False, True]
    assert standing.suspended(MEMBERS) == [A.id]
    assert standing.candidates([A, B], 1) == ([B], [])


def test_misses_count_until_many_tasks_have_come_after_them(standing: Standing) -> None:
    for _ in range(20):  # two of twenty-four
        assert not standing.missed(A)
        for _ in range(11):
            standing.answered(A, 1.0)
    found = []
    for _ in range(2):  # each second one
        found.append(standing.missed(A))
        standing.answered(A, 1.0)
    assert found == [False, True]
    assert standing.candidates([A, B], 1) == ([B], [A]), "it answers, and gets a task each time"


def restore(standing: Standing, client: Member) -> int:
    """Let a suspended client answer well until it is restored. Return how many answers that takes."""
    count = 0
    while client.id in standing.suspended(MEMBERS):
        standing.answered(client, 1.0)
        count += 1
    return count


@pytest.mark.parametrize(("every", "delays"), [(1, 3), (2, 4), (3, 4), (4, 4), (6, 4), (8, 4), (11, 4), (12, 4)])
def test_a_client_that_misses_some_tasks_delays_few_of_fifty_rounds(
    standing: Standing, every: int, delays: int
) -> None:
    found = tasks = 0
    for _ in range(50):
        regular, retried = standing.candidates([A, B], 1)
        tasks += A in (*regular, *retried)
        if A in (*regular, *retried) and tasks % every == 0:
            found += A in regular
            standing.missed(A)
        elif A in (*regular, *retried):
            standing.answered(A, 1.0)
    assert found == delays


def test_a_client_that_misses_what_is_waited_for_delays_few_of_fifty_rounds(standing: Standing) -> None:
    found = 0
    for _ in range(50):
        regular, retried = standing.candidates([A, B], 1)
        if A in regular:
            found += 1
            standing.missed(A)
        elif A in retried:
            standing.answered(A, 1.0)
    assert found == 5


def test_a_suspended_client_owes_good_answers(standing: Standing) -> None:
    suspend(standing, A)
    assert restore(standing, A) == 8
    assert standing.candidates([A], 1, again=True) == ([A], []), "its last answer was good"
    assert standing.missed(A), "the other three count"
    assert restore(standing, A) == 16
    for _ in range(20):
        standing.answered(A, 1.0)
    assert [standing.missed(A) for _ in range(2)] == [False, True], "the last two count"
    assert restore(standing, A) == 32
    for _ in range(23):
        standing.answered(A, 1.0)
    assert [standing.missed(A) for _ in range(3)] == [False, False, True], "its misses are long ago"
    assert restore(standing, A) == 8


def test_what_is_owed_is_bounded(standing: Standing) -> None:
    standing = Standing(3, DEADLINE)
    standing._window = 2**1000 - 1  # so that no miss is forgotten
    suspend(standing, A)
    counts = []
    for _ in range(7):
        counts.append(restore(standing, A))
        standing.missed(A)
    assert counts == [8, 16, 32, 64, 64, 64, 64]


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


@pytest.mark.parametrize(("seconds", "counts"), [(DEADLINE, True), (DEADLINE + 1, False)])
def test_a_late_answer_that_is_fast_enough_counts(standing: Standing, seconds: float, *, counts: bool) -> None:
    suspend(standing, A)
    for _ in range(8):
        standing.answered_late(A, seconds)
    assert (standing.suspended(MEMBERS) == [A.id]) is not counts
    assert (standing.expected(A) > 0) is counts


def test_a_restored_server_goes_on(standing: Standing) -> None:
    suspend(standing, A)
    standing.candidates([A, B], 1)
    standing.answered(B, 1.0)
    standing.missed(C)
    other, found = Standing(3, DEADLINE), {each.id: Member(each.id) for each in MEMBERS}
    other.restore(standing.state(MEMBERS), found.__getitem__)
    assert other.suspended(found.values()) == [A.id]
    assert other._turn == 1
    assert [found[each.id].records["train"] for each in (A, C)] == [A.records["train"], C.records["train"]]
    assert found[B.id].records["train"] == Member(B.id).records["train"], "it has missed nothing"


def test_log_has_one_line_for_each_suspension(standing: Standing, caplog: pytest.LogCaptureFixture) -> None:
    suspend(standing, A)
    standing.missed(A)
    assert caplog.messages == [
        f"{A}: suspended: no good answer to 3 of its last 24 trainings; rounds wait for it again after 8 good ones"
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
