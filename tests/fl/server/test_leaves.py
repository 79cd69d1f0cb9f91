"""Where the clients of secure aggregation are, as relays say, and what comes of wrong words of theirs."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import fl
from fl.messages import Answered, Masked
from fl.report import ClientFailure, FailureKind
from fl.server import leaves
from fl.server.gather import failure_of
from fl.server.leaves import Leaves, listed, parted
from fl.server.member import Member
from fl.subtotal import Subtotal
from tests.fl.secure.circle import Circle

IDS = [str(uuid.UUID(int=number)) for number in range(10)]
DIRECT, NORTH, SOUTH = IDS[0], IDS[8], IDS[9]
Told = Mapping[str, Any]


class Members:
    """Members that answer at once. answers: of each, to what it is asked."""

    run = 1

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: Callable[[str, Told], Any]) -> None:
        def gather(
            members: Any, task: Any, clients: Any, limit: Any, what: str, read: Any, *, own: Any, **_: Any
        ) -> Any:
            found, failed = {}, {}
            for client, member in clients.items():
                try:
                    told = answers(client, own[member]["secure"])
                    found[client] = read(client, Answered(told) if isinstance(told, dict) else told)
                except Exception as error:
                    failed[client] = failure_of(error, what)
            return found, failed

        monkeypatch.setattr(leaves, "gather", gather)


def members() -> list[Member]:
    found = [Member(uuid.UUID(each)) for each in (DIRECT, NORTH, SOUTH)]
    for each in found[1:]:
        each.session.is_relay, each.name = True, "north" if str(each.id) == NORTH else "south"
    return found


def found_of(monkeypatch: pytest.MonkeyPatch, north: Any, south: Any) -> tuple[Leaves, dict[str, ClientFailure]]:
    told = {NORTH: north, SOUTH: south}
    its = Leaves(Members(monkeypatch, lambda client, asked: told[client]))  # type: ignore[arg-type]
    return its, its.find(members(), "train", 1.0, [IDS[7]])


def test_each_client_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is connected itself is not behind a relay that says so, and a relay is no client."""
    north = {"clients": {IDS[1]: [5.0, "c1"], IDS[2]: [0.0, ""], DIRECT: [0.0, ""], IDS[7]: [0.0, ""]}}
    south = {"clients": {IDS[2]: [0.0, ""], IDS[3]: [math.inf, ""], SOUTH: [0.0, ""]}}
    its, failures = found_of(monkeypatch, north, south)
    assert {client: str(leaf.member.id) for client, leaf in its.found.items()} == {
        DIRECT: DIRECT,
        IDS[1]: NORTH,
        IDS[3]: SOUTH,
    }
    [(client, failure)] = failures.items()
    assert client == IDS[2]
    assert "both say that it is their client: give each its own id" in failure.reason
    assert [str(each.id) for each in its.carriers([IDS[1], DIRECT, IDS[1]])] == [NORTH, DIRECT]


def test_a_client_is_there_for_as_long_as_its_relay_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    its, _ = found_of(monkeypatch, {"clients": {IDS[1]: [5.0, "c1"]}}, {"clients": {}})
    assert its.found[IDS[1]].since == 95.0
    assert listed({IDS[1]: its.found[IDS[1]]}, 101.0) == {"clients": {IDS[1]: [6.0, "c1"]}}


@pytest.mark.parametrize(
    "told",
    [
        fl.Skip("nothing"),
        {},
        {"clients": [IDS[1]]},
        {"clients": {IDS[1]: [-1.0, ""]}},
        {"clients": {IDS[1]: [1.0, 5]}},
        {"clients": {"x": [1.0, ""]}},
    ],
)
def test_a_relay_that_does_not_say_who_its_clients_are_has_none(monkeypatch: pytest.MonkeyPatch, told: Any) -> None:
    its, failures = found_of(monkeypatch, told, {"clients": {IDS[3]: [1.0, ""]}})
    assert its.found.keys() == {DIRECT, IDS[3]}
    assert failures[NORTH].why is FailureKind.INVALID


def test_a_relay_gets_what_all_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Told] = {}

    def answers(client: str, question: Told) -> Any:
        if question["step"] == "clients":
            return {"clients": {each: [1.0, ""] for each in (IDS[1:5] if client == NORTH else IDS[5:6])}}
        asked[client] = question
        if client == SOUTH:
            raise fl.InvalidUpdate("no way")
        if client == DIRECT:
            return {"value": 0}
        failures = {IDS[2]: ["LATE", "no answer in time"], IDS[3]: ["NONE", ""]}
        return {"answers": {IDS[1]: {"value": 1}, IDS[4]: {}}, "failures": failures}

    its = Leaves(Members(monkeypatch, answers))  # type: ignore[arg-type]
    its.find(members(), "train", 1.0)
    same = b"same"
    questions = {each: {"all": same, "own": number} for number, each in enumerate(IDS[:6])}
    found, failed = its.ask("tags", "s", questions, lambda client, told: told["value"], 1.0)
    assert found == {DIRECT: 0, IDS[1]: 1}
    assert asked[DIRECT] == {"step": "tags", "session": "s", "all": same, "own": 0}
    assert asked[NORTH] == {
        "step": "tags",
        "session": "s",
        "all": same,
        "each": {IDS[at]: {"own": at} for at in range(1, 5)},
    }
    assert parted(asked[NORTH]) == {each: questions[each] for each in IDS[1:5]}
    assert failed[IDS[2]] == ClientFailure(FailureKind.LATE, "behind north (client 8): no answer in time")
    assert failed.keys() == set(IDS[2:6])
    assert failed[IDS[5]].reason == "behind south (client 9): its answer to the step 'tags' is not valid: no way"


@pytest.mark.parametrize("asked", [{}, {"each": 5}, {"each": {DIRECT: 5}}])
def test_a_relay_answers_no_step_for_itself(asked: Told) -> None:
    with pytest.raises(fl.InvalidUpdate, match="the step is for a client, and this is a relay"):
        parted(asked)


@pytest.mark.parametrize(
    ("member", "clients", "error"),
    [
        (NORTH, [IDS[1], IDS[3]], "its sum has client .*3, which is not behind it in this round"),
        (DIRECT, [IDS[1]], "its sum has client .*1, which is not behind it"),
        (NORTH, [IDS[6]], "its sum has client .*6, which is not behind it"),
        (NORTH, [], "none of its clients has an answer that counts"),
    ],
)
def test_a_sum_is_of_the_clients_behind_its_relay(
    monkeypatch: pytest.MonkeyPatch, member: str, clients: list[str], error: str
) -> None:
    its, _ = found_of(monkeypatch, {"clients": {IDS[1]: [1.0, ""]}}, {"clients": {IDS[3]: [1.0, ""]}})
    summing: Any = None  # no sum is touched
    with pytest.raises(fl.InvalidUpdate, match=error):
        its.add(summing, member, Subtotal({}, {uuid.UUID(each): 1 for each in clients}))


def test_a_vector_of_a_relay_itself_is_refused() -> None:
    circle = Circle(3)
    task, summing, _ = circle.begin()
    sent: Masked = circle.update(circle.ids[0], task)
    with pytest.raises(fl.InvalidUpdate, match="which is not asked in this round"):
        circle.masks.leaves.add(summing, NORTH, sent)
