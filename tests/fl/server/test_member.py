"""The states of a client's task: what each event makes of each state, and what a session takes with it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from fl.messages import Job
from fl.server.member import TRANSITIONS, Asked, Event, Member, Owed, Session, State
from tests.fl.federation import A

FREE = {State.IDLE, State.COUNTED, State.SKIPPED, State.FAILED, State.LATE}
AT_WORK = {State.ASKED, State.OFFERED, State.PERMITTED}
BUSY = AT_WORK | {State.ARRIVED}
JOB, OTHER = Job(1, 2, "train"), Job(1, 3, "train")

LEGAL: dict[Event, tuple[Iterable[State], State]] = {
    Event.ASK: (FREE, State.ASKED),
    Event.OFFER: ({State.ASKED, State.PERMITTED}, State.OFFERED),
    Event.PERMIT: ({State.OFFERED}, State.PERMITTED),
    Event.REPLY: (AT_WORK, State.ARRIVED),
    Event.COUNT: ({State.ARRIVED}, State.COUNTED),
    Event.SKIP: ({State.ARRIVED}, State.SKIPPED),
    Event.FAIL: (BUSY, State.FAILED),
    Event.EXPIRE: (AT_WORK, State.LATE),
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_each_event_in_each_state(state: State, event: Event) -> None:
    found = TRANSITIONS[event].get(state)
    if event is Event.FORGET:
        assert found is (State.IDLE if state in BUSY else state)
    elif event is Event.END:
        assert found is (State.ASKED if state in AT_WORK else state)
    else:
        legal, after = LEGAL[event]
        assert found is (after if state in legal else None)


@pytest.mark.parametrize("event", [Event.COUNT, Event.SKIP, Event.FAIL, Event.FORGET])
def test_a_free_member_has_no_task(event: Event) -> None:
    member = asked()
    member.on(Event.REPLY)
    assert member.has(JOB)
    member.on(event)
    assert (member.task, member.has(JOB)) == (None, False)


def asked() -> Member:
    member = Member(A)
    member.on(Event.ASK)
    member.task = Asked(JOB, until=10.0, is_first=True)
    member.owed.append(Owed(JOB, since=1.0, allowed=100))
    return member


def test_an_offer_ends_with_its_session_and_the_task_stays() -> None:
    member = asked()
    member.on(Event.OFFER)
    assert member.task is not None
    member.task.has_offered_again = True
    member.session.is_visitor = True
    member.end_session()
    assert (member.state, member.session) == (State.ASKED, Session())
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


def test_replies_to_the_last_job_are_counted() -> None:
    member = Member(A)
    assert member.replies(JOB) == 0
    member.replied = JOB, 2
    assert (member.replies(JOB), member.replies(OTHER)) == (2, 0)
