"""The states of a client's task: what each event makes of each state, and what a session takes with it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from fl.envelope import Job
from fl.server.member import TRANSITIONS, Asked, Member, MemberEvent, MemberSession, MemberState, Owed
from tests.fl.federation import A

FREE = {MemberState.IDLE, MemberState.COUNTED, MemberState.SKIPPED, MemberState.FAILED, MemberState.LATE}
AT_WORK = {MemberState.ASKED, MemberState.OFFERED, MemberState.PERMITTED}
BUSY = AT_WORK | {MemberState.ARRIVED}
JOB, OTHER = Job(1, 2, "train"), Job(1, 3, "train")

LEGAL: dict[MemberEvent, tuple[Iterable[MemberState], MemberState]] = {
    MemberEvent.ASK: (FREE, MemberState.ASKED),
    MemberEvent.OFFER: ({MemberState.ASKED, MemberState.PERMITTED}, MemberState.OFFERED),
    MemberEvent.PERMIT: ({MemberState.OFFERED}, MemberState.PERMITTED),
    MemberEvent.REPLY: (AT_WORK, MemberState.ARRIVED),
    MemberEvent.COUNT: ({MemberState.ARRIVED}, MemberState.COUNTED),
    MemberEvent.SKIP: ({MemberState.ARRIVED}, MemberState.SKIPPED),
    MemberEvent.FAIL: (BUSY, MemberState.FAILED),
    MemberEvent.EXPIRE: (AT_WORK, MemberState.LATE),
}


@pytest.mark.parametrize("state", MemberState)
@pytest.mark.parametrize("event", MemberEvent)
def test_each_event_in_each_state(state: MemberState, event: MemberEvent) -> None:
    found = TRANSITIONS[event].get(state)
    if event is MemberEvent.FORGET:
        assert found is (MemberState.IDLE if state in BUSY else state)
    elif event is MemberEvent.END:
        assert found is (MemberState.ASKED if state in AT_WORK else state)
    else:
        legal, after = LEGAL[event]
        assert found is (after if state in legal else None)


@pytest.mark.parametrize("event", [MemberEvent.COUNT, MemberEvent.SKIP, MemberEvent.FAIL, MemberEvent.FORGET])
def test_a_free_member_has_no_task(event: MemberEvent) -> None:
    member = asked()
    member.on(MemberEvent.REPLY)
    assert member.has(JOB)
    member.on(event)
    assert (member.task, member.has(JOB)) == (None, False)


def asked() -> Member:
    member = Member(A)
    member.on(MemberEvent.ASK)
    member.task = Asked(JOB, until=10.0, is_first=True)
    member.owed.append(Owed(JOB, since=1.0, allowed=100))
    return member


def test_an_offer_ends_with_its_session_and_the_task_stays() -> None:
    member = asked()
    member.on(MemberEvent.OFFER)
    assert member.task is not None
    member.task.has_offered_again = True
    member.session.is_visitor = True
    member.end_session()
    assert (member.state, member.session) == (MemberState.ASKED, MemberSession())
    assert member.has(JOB)
    assert not member.task.has_offered_again


def test_a_reply_is_owed_once() -> None:
    member = asked()
    member.owed.append(Owed(OTHER, since=2.0, allowed=300))
    assert (member.allowed, member.seconds) == (300, math.inf)
    found = member.settle(JOB, now=4.0)
    assert found is not None
    assert (found.allowed, member.seconds) == (100, 3.0)
    assert member.settle(JOB, now=9.0) is None
    assert (member.allowed, member.seconds) == (300, 3.0)
    member.settle(OTHER, now=9.0)
    assert member.allowed == 0


def test_seconds_of_a_reply_begin_anew_with_its_session() -> None:
    """A device that was started again has its task again: it did not train while it was away."""
    member = asked()
    member.since = 3.5
    member.settle(JOB, now=4.0)
    assert member.seconds == 0.5


def test_replies_to_the_last_job_are_counted() -> None:
    member = Member(A)
    assert member.replies(JOB) == 0
    member.replied = JOB, 2
    assert (member.replies(JOB), member.replies(OTHER)) == (2, 0)
