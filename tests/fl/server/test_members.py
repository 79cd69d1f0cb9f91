"""What a server keeps of clients that have gone, and what a new session begins anew."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import fl
import netq
from fl.server.member import Member
from fl.server.members import Members
from tests.fl.federation import A, B, C, at, zeros


@pytest.fixture
def members() -> Iterator[Members]:
    with fl.Server(zeros(), at(netq.NetworkLocation("127.0.0.1", 0))) as server:
        yield server._members


def test_a_client_that_has_gone_is_known_by_the_tasks_that_it_has_missed(members: Members) -> None:
    members.of(A).records["evaluate"].missed = 0b101
    members.of(A).seconds = 3.0
    members.of(B).records["train"].seconds = 1.0
    members.update()
    (member,) = members
    assert (member.id, member.records["evaluate"].misses) == (A, 2)
    assert member.seconds != 3.0, "of its old task"


def test_the_clients_that_are_remembered_are_bounded(members: Members) -> None:
    for number in range(5000):
        members.of(uuid.UUID(int=number)).records["train"].missed = 1
    members.of(uuid.UUID(int=1)).is_counted = True  # the next round says that it is absent
    members.update()
    members.of(uuid.UUID(int=1)).is_counted = False
    assert {member.id.int for member in members} == {1, *range(904, 5000)}


def test_a_client_that_has_gone_is_shown_with_what_is_known_of_it(members: Members) -> None:
    for number in range(300):
        members.of(uuid.UUID(int=number)).name = f"board-{number}"
    members.of(uuid.UUID(int=299)).left = "its check has failed"
    members.of(uuid.UUID(int=1000))  # which has said nothing
    for member in members:
        member.end_session()
    for _ in range(2):
        members.update()
    assert [member.name for member in members] == [f"board-{number}" for number in range(44, 300)]
    members.of(uuid.UUID(int=2000)).name = "board-2000"
    members.of(uuid.UUID(int=2000)).end_session()
    members.update()
    assert members.status()[-1].name == "board-2000"
    members._members.pop(uuid.UUID(int=2000))
    last = members.status()[-1]
    assert (last.stage, last.name, last.reason) == (fl.Stage.GONE, "board-299", "its check has failed")


def test_a_new_session_ends_the_pause_of_a_suspended_client(members: Members) -> None:
    members.of(C).records["train"].due = 50
    members._session_begins(C)
    members.takes_part(C)
    assert members.of(C).records["train"].due == 0


def test_sessions_may_begin_while_the_server_looks_for_new_ones(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, of = [B, C], members.of

    def begins(peer: uuid.UUID) -> Member:
        if others:
            members._session_begins(others.pop())
        return of(peer)

    members._session_begins(A)
    monkeypatch.setattr(members, "of", begins)
    assert not members.has_new(), "none of them has a session of netq"
    assert members.is_new(B)
