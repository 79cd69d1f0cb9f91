"""Who is blamed for what two clients share: never an honest client, while no more lie than a session tolerates."""

from __future__ import annotations

import pytest

from fl.errors import InvalidUpdate
from fl.secure import doubts as module
from fl.secure.doubts import Doubts
from fl.secure.participant import Participant
from fl.server.federation import Void
from tests.fl.secure.circle import Circle
from tests.pages import Page

LIARS, ALL = ["a", "b", "c"], ["a", "b", "c", "d", "e", "f", "honest"]


def test_a_client_that_does_not_fit_more_than_may_lie_has_lied() -> None:
    found = Doubts()
    assert found.note([("a", "d"), ("a", "e")], ALL, 2) == {}
    assert found.note([("f", "a")], ALL, 2) == {"a": "what it has shared with 3 others is not what these have"}
    assert found.note([("d", "e")], ALL, 1) == {}  # what a liar says counts for nothing


def test_a_client_is_judged_by_the_largest_session_in_which_it_had_doubts() -> None:
    found = Doubts()
    assert found.note([("a", "honest"), ("b", "honest"), ("c", "honest")], ALL, 3) == {}
    assert found.note([("c", "honest")], [*LIARS, "honest"], 1) == {}


def test_doubts_with_clients_that_are_gone_do_not_count() -> None:
    found = Doubts()
    for number in range(20):
        assert found.note([(f"sybil {number}", "honest")], ["a", "honest", f"sybil {number}"], 1) == {}


def test_doubts_of_any_number_of_ids_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 10)
    found = Doubts()
    for number in range(20):
        found.note([(f"sybil {number}", "honest")], [f"sybil {number}", "honest"], 1)
        found.ended([(f"sybil {number}", "honest")])
    assert len(found._doubted) == len(found._ended) == 10


def test_of_a_pair_that_has_ended_two_set_ups_one_is_left_out_by_turns() -> None:
    found = Doubts()
    found.ended([("honest", "a")])
    assert found.left_out(ALL, 1) == {}
    found.ended([("a", "honest")])
    assert {number: found.left_out(ALL, number) for number in (1, 15, 16, 32)} == {
        1: {"a": "honest"},
        15: {"a": "honest"},
        16: {"honest": "a"},
        32: {"a": "honest"},
    }
    assert found.left_out(LIARS, 16) == {}


# Rounds


@pytest.mark.parametrize("clients", [3, 4, 5, 6, 7, 8, 10, 16])
@pytest.mark.parametrize("step", ["check", "open"])
def test_as_many_liars_as_the_table_has_get_no_honest_client_blamed(clients: int, step: str) -> None:
    rows = Page("docs/explanation/secure-aggregation.md").rows("clients", "open a sum")
    most = {int(row[0]): int(row[3]) for row in rows}[clients]
    circle = Circle(clients)
    honest, liars = circle.ids[-1], circle.ids[:most]
    name = {"check": "refused", "open": "doubted"}[step]
    circle.answers = lambda client, asked, told: {**told, name: [honest]} if asked == step and client in liars else told
    for _ in range(3):
        try:
            task, summing, _ = circle.begin()
            circle.report(task, summing)
            circle.open(summing)
        except (Void, InvalidUpdate):
            continue
    assert honest not in circle.masks.liars


@pytest.mark.parametrize("doubts", [2, 3])
def test_a_liar_that_is_gone_makes_no_later_round_fail(doubts: int) -> None:
    """It had no more doubts than a session of eight has liars, and more than one of six."""
    circle = Circle(8)
    task, summing, _ = circle.begin()
    liar = circle.ids[0]
    accused = [each for each in summing.roster.committee if each != liar][:doubts]
    circle.answers = lambda client, step, told: (
        {**told, "doubted": accused} if client == liar and step == "open" else told
    )
    circle.report(task, summing)
    circle.open(summing)
    circle.answers = lambda client, step, told: told
    circle.ids = [each for each in circle.ids if each != liar][:6]
    task, summing, failures = circle.begin()
    circle.report(task, summing)
    circle.open(summing)
    assert (failures, circle.masks.liars) == ({}, {})


def test_one_liar_does_not_keep_a_client_out_for_ever() -> None:
    circle = Circle(8)
    liar, honest = circle.ids[0], circle.ids[5]
    steps = 0

    def answers(client: str, step: str, told: dict[str, object]) -> dict[str, object]:
        nonlocal steps
        steps += client == circle.ids[1] and step == "keys"
        return {"refused": [honest]} if step == "check" and client == liar else told

    circle.answers = answers
    rounds = 40
    took_part = dict.fromkeys((liar, honest), 0)
    for _ in range(rounds):
        _, _, failures = circle.begin()
        for each in took_part:
            took_part[each] += each not in failures
    assert took_part[honest] >= 16
    assert took_part[liar] >= 16  # nothing tells which of the two lies
    assert steps <= 8  # set-ups


def test_a_client_that_comes_back_under_new_ids_gets_no_other_blamed() -> None:
    circle = Circle(5)
    victim = circle.ids[0]
    for number in range(6):
        liar = f"00000000-0000-0000-0000-{1000 + number:012}"
        circle.ids = [*circle.ids[:4], liar]
        circle.people[liar] = Participant(liar, lambda entry, session: entry, None, 3)
        circle.answers = lambda client, step, told, liar=liar: (  # type: ignore[misc]
            {"refused": [victim]} if step == "check" and client == liar else told
        )
        circle.begin()
    assert victim not in circle.masks.liars
