"""Admission: as many clients as there is room for, at least one, in the order of their offers."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl.server.admission import Admission, Sending
from fl.server.member import Member

A, B, C, D = MEMBERS = [Member(uuid.UUID(int=n)) for n in range(1, 5)]


@pytest.fixture(autouse=True)
def unknown() -> None:
    """Forget what an earlier test has taught the members."""
    for member in MEMBERS:
        vars(member).update(vars(Member(member.id)))


def admission(room: int) -> Admission:
    made = Admission(room)
    made.patience = 10.0
    return made


def test_clients_are_admitted_while_there_is_room() -> None:
    uploads = admission(250)
    for peer in MEMBERS:
        uploads.offer(peer, 100)
    assert uploads.admit(0.0) == [A, B]
    assert uploads.admit(0.0) == []
    uploads.leave(B)
    assert uploads.admit(0.0) == [C]
    uploads.leave(A)
    uploads.leave(C)
    assert uploads.admit(0.0) == [D]


def test_an_update_larger_than_the_room_is_admitted_alone() -> None:
    uploads = admission(10)
    uploads.offer(A, 100)
    uploads.offer(B, 1)
    assert uploads.admit(0.0) == [A]
    uploads.leave(A)
    assert uploads.admit(0.0) == [B]


@given(st.lists(st.tuples(st.sampled_from(range(4)), st.integers(0, 3), st.integers(1, 60)), max_size=40))
def test_admitted_clients_fit_whatever_was_before(steps: list[tuple[int, int, int]]) -> None:
    uploads, members = admission(100), [Member(uuid.UUID(int=n)) for n in range(1, 5)]
    for number, step, size in steps:
        member = members[number]
        if step == 0 and member.place is None:
            uploads.offer(member, size)
        elif step == 1 and member.place is not None:
            uploads.arrive(member, size, 1.0)
        elif step == 2 and member.place is not None:
            uploads.defer(member, size)
        elif step == 3:
            uploads.leave(member)
        uploads.admit(0.0)
    for member in members:
        uploads.leave(member)
        member.slow = 0
        uploads.offer(member, 25)
    assert uploads.admit(0.0) == members, "the room of those before is free, and no more"
    uploads.offer(Member(uuid.UUID(int=9)), 1)
    assert uploads.admit(0.0) == []


def test_small_updates_do_not_overtake_a_large_one() -> None:
    uploads = admission(100)
    uploads.offer(A, 60)
    assert uploads.admit(0.0) == [A]
    uploads.offer(B, 90)
    uploads.offer(C, 10)
    assert uploads.admit(0.0) == []
    uploads.leave(A)
    assert uploads.admit(0.0) == [B, C]


def test_a_client_that_leaves_frees_its_place() -> None:
    uploads = admission(100)
    for peer in (A, B, C):
        uploads.offer(peer, 100)
    uploads.admit(0.0)
    uploads.leave(B)
    uploads.leave(B)
    uploads.leave(A)
    assert uploads.admit(0.0) == [C]


def test_a_second_offer_goes_to_the_end_of_the_queue() -> None:
    uploads = admission(100)
    uploads.offer(A, 100)
    assert uploads.admit(0.0) == [A]
    uploads.offer(B, 100)
    uploads.offer(A, 50)
    assert uploads.admit(0.0) == [B]


def sending(sent: int, left: int, until: float = 100.0, *, is_held: bool = False, is_wrong: bool = False) -> Sending:
    return Sending(sent, left, until, is_held, is_wrong)


def test_a_client_has_to_be_done_in_time() -> None:
    uploads = admission(100)
    assert uploads.slow({A: sending(0, 900)}, now=0.0) == []
    assert uploads.slow({A: sending(10, 890)}, now=9.0) == []
    assert uploads.slow({A: sending(100, 800)}, now=10.0) == []  # 10 bytes a second, and 8.9 are enough
    assert uploads.slow({A: sending(180, 720)}, now=20.0) == [A]  # 8 bytes a second
    assert uploads.slow({A: sending(180, 720)}, now=29.0) == []
    assert uploads.slow({A: sending(180, 720)}, now=30.0) == [A]


def test_a_client_without_a_window_is_not_slow() -> None:
    uploads = admission(100)
    for now in (0.0, 50.0, 90.0):
        assert uploads.slow({A: sending(0, 900, is_held=True)}, now) == []
    assert uploads.slow({A: sending(0, 900)}, 99.0) == []
    assert uploads.slow({A: sending(0, 900)}, 109.0) == [A]


def test_a_client_that_sends_more_than_it_may_is_slow_at_once() -> None:
    assert admission(100).slow({A: sending(0, 900, is_held=True, is_wrong=True), B: sending(0, 900)}, 0.0) == [A]


def test_rates_count_only_while_others_wait() -> None:
    uploads = admission(100)
    uploads.slow({A: sending(0, 900)}, 0.0)
    uploads.slow({}, 50.0)
    assert uploads.slow({A: sending(0, 900)}, 60.0) == []


def test_a_new_session_begins_a_measurement() -> None:
    uploads = admission(100)
    uploads.slow({A: sending(500, 900)}, 0.0)
    assert uploads.slow({A: sending(0, 900)}, 10.0) == []


def test_a_client_keeps_half_of_the_usual_rate() -> None:
    uploads = admission(100)
    for peer in (B, C):
        uploads.offer(peer, 40)
        uploads.admit(0.0)
        uploads.arrive(peer, 40, 1.0)  # 40 bytes a second: its update takes a second, so two tell its rate
    uploads.slow({A: sending(0, 40), D: sending(0, 40)}, 1.0)
    assert uploads.slow({A: sending(38, 2), D: sending(42, 0)}, 3.0) == [A]


def test_a_deferred_client_waits_behind_the_others() -> None:
    uploads = admission(100)
    for peer in MEMBERS:
        uploads.offer(peer, 100)
    assert uploads.admit(0.0) == [A]
    uploads.defer(A, 100)
    assert uploads.admit(0.0) == [B]
    uploads.arrive(B, 100, 1.0)
    uploads.arrive(A, 100, 1.0)  # it was sent all the same, and takes its place
    uploads.leave(B)
    assert uploads.admit(0.0) == []
    uploads.leave(A)
    assert uploads.admit(0.0) == [C]


def test_a_slow_client_takes_no_room_that_others_may_need() -> None:
    uploads = admission(250)
    uploads.defer(A, 100)
    uploads.offer(B, 100)
    assert uploads.admit(0.0, at_work=lambda: [C]) == [B]
    uploads.leave(B)
    assert uploads.admit(0.0, at_work=lambda: [C]) == [A], "C has room, too"
    uploads.offer(A, 200)
    assert uploads.admit(0.0, at_work=lambda: [C]) == []
    assert uploads.admit(0.0, at_work=lambda: [A]) == [A], "no other client is at work"


def test_a_slow_client_proves_itself() -> None:
    uploads = admission(100)
    uploads.defer(A, 100)
    uploads.withdraw(A)
    for number in range(9):
        uploads.offer(A, 100)
        assert uploads.admit(0.0, at_work=lambda: [B]) == ([A] if number == 8 else [])
        uploads.admit(0.0)
        uploads.arrive(A, 100, 1.0)
        uploads.leave(A)


def test_clients_that_have_gone_are_removed() -> None:
    uploads = admission(100)
    for peer in (A, B, C):
        uploads.offer(peer, 100)
    uploads.admit(0.0)
    uploads.keep({C.id: None})
    assert uploads.admit(0.0) == [C]


def test_the_shares_of_all_clients_fit_into_the_room() -> None:
    assert [admission(100).share(clients) for clients in (0, 1, 3, 1000)] == [100, 100, 33, 0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 200))), st.integers(0, 300))
def test_random_offers_never_exceed_the_room(steps: list[tuple[int, int]], room: int) -> None:
    """A negative size stands for leaving."""
    uploads, admitted, waiting = admission(room), dict[Member, int](), dict[Member, int]()
    members = [Member(uuid.UUID(int=number)) for number in range(6)]
    for number, size in steps:
        peer = members[number]
        admitted.pop(peer, None)
        waiting.pop(peer, None)
        if size < 0:
            uploads.leave(peer)
        else:
            uploads.offer(peer, size)
            waiting[peer] = size
        for each in uploads.admit(0.0):
            admitted[each] = waiting.pop(each)
        assert sum(admitted.values()) <= room or len(admitted) == 1
        assert not waiting or admitted, "a client is admitted as long as one waits"
