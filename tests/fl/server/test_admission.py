"""Who may send: as many as there is room for, in the order of asking, one at least."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from fl.server.admission import Admission

A, B, C, D = IDS = [uuid.UUID(int=n) for n in range(1, 5)]


def test_as_many_as_there_is_room_for_are_admitted_and_the_next_when_one_is_done() -> None:
    uploads = Admission(250)
    for peer in IDS:
        uploads.offer(peer, 100)
    assert list(uploads.admit()) == [A, B]
    assert list(uploads.admit()) == []
    uploads.leave(B)
    assert list(uploads.admit()) == [C]
    uploads.leave(A)
    uploads.leave(C)
    assert list(uploads.admit()) == [D]


def test_one_that_is_larger_than_all_room_is_admitted_alone() -> None:
    uploads = Admission(10)
    uploads.offer(A, 100)
    uploads.offer(B, 1)
    assert list(uploads.admit()) == [A]
    uploads.leave(A)
    assert list(uploads.admit()) == [B]


def test_a_large_one_is_not_passed_by() -> None:
    uploads = Admission(100)
    uploads.offer(A, 60)
    assert list(uploads.admit()) == [A]
    uploads.offer(B, 90)
    uploads.offer(C, 10)
    assert list(uploads.admit()) == []
    uploads.leave(A)
    assert list(uploads.admit()) == [B, C]


def test_who_goes_leaves_its_place() -> None:
    uploads = Admission(100)
    for peer in (A, B, C):
        uploads.offer(peer, 100)
    uploads.admit()
    uploads.leave(B)
    uploads.leave(B)
    uploads.leave(A)
    assert list(uploads.admit()) == [C]


def test_who_offers_again_goes_to_the_end() -> None:
    uploads = Admission(100)
    uploads.offer(A, 100)
    assert list(uploads.admit()) == [A]
    uploads.offer(B, 100)
    uploads.offer(A, 50)
    assert list(uploads.admit()) == [B]


def test_who_is_let_in_and_comes_no_further_while_others_wait_is_told_of() -> None:
    uploads = Admission(100)
    uploads.offer(A, 100)
    uploads.admit()
    assert uploads.silent({A: 5}, now=10.0) == {A: 0.0}
    assert uploads.silent({A: 5}, now=20.0) == {A: 0.0}, "nobody waits"
    uploads.offer(B, 100)
    assert uploads.silent({A: 5, B: 0}, now=30.0) == {A: 10.0}
    assert uploads.silent({A: 6, B: 0}, now=40.0) == {A: 0.0}
    assert uploads.silent({A: 6, B: 9}, now=45.0) == {A: 5.0}
    uploads.leave(A)
    uploads.admit()
    uploads.offer(A, 100)
    assert uploads.silent({A: 6, B: 9}, now=60.0) == {B: 0.0}


def test_what_all_may_send_unasked_fits_together() -> None:
    assert [Admission(100).share(clients) for clients in (0, 1, 3, 1000)] == [100, 100, 33, 0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 200))), st.integers(0, 300))
def test_room_is_never_exceeded_but_by_one_alone_and_nobody_is_forgotten(
    steps: list[tuple[int, int]], room: int
) -> None:
    """A size below 0 stands for leaving."""
    uploads, admitted, waiting = Admission(room), dict[uuid.UUID, int](), dict[uuid.UUID, int]()
    for number, size in steps:
        peer = uuid.UUID(int=number)
        admitted.pop(peer, None)
        waiting.pop(peer, None)
        if size < 0:
            uploads.leave(peer)
        else:
            uploads.offer(peer, size)
            waiting[peer] = size
        for each in uploads.admit():
            admitted[each] = waiting.pop(each)
        assert sum(admitted.values()) <= room or len(admitted) == 1
        assert not waiting or admitted, "somebody is let in as long as somebody waits"
