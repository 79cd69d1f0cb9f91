"""Admission: as many clients as there is room for, at least one, in the order of their offers."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from fl.server.admission import Admission

A, B, C, D = IDS = [uuid.UUID(int=n) for n in range(1, 5)]


def test_clients_are_admitted_while_there_is_room() -> None:
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


def test_an_update_larger_than_the_room_is_admitted_alone() -> None:
    uploads = Admission(10)
    uploads.offer(A, 100)
    uploads.offer(B, 1)
    assert list(uploads.admit()) == [A]
    uploads.leave(A)
    assert list(uploads.admit()) == [B]


def test_small_updates_do_not_overtake_a_large_one() -> None:
    uploads = Admission(100)
    uploads.offer(A, 60)
    assert list(uploads.admit()) == [A]
    uploads.offer(B, 90)
    uploads.offer(C, 10)
    assert list(uploads.admit()) == []
    uploads.leave(A)
    assert list(uploads.admit()) == [B, C]


def test_a_client_that_leaves_frees_its_place() -> None:
    uploads = Admission(100)
    for peer in (A, B, C):
        uploads.offer(peer, 100)
    uploads.admit()
    uploads.leave(B)
    uploads.leave(B)
    uploads.leave(A)
    assert list(uploads.admit()) == [C]


def test_a_second_offer_goes_to_the_end_of_the_queue() -> None:
    uploads = Admission(100)
    uploads.offer(A, 100)
    assert list(uploads.admit()) == [A]
    uploads.offer(B, 100)
    uploads.offer(A, 50)
    assert list(uploads.admit()) == [B]


def test_silence_counts_only_while_others_wait() -> None:
    uploads = Admission(100)
    uploads.offer(A, 100)
    uploads.admit()
    assert uploads.silent({A: 5}, now=10.0) == {A: 0.0}
    assert uploads.silent({A: 5}, now=20.0) == {A: 0.0}, "no client waits"
    uploads.offer(B, 100)
    assert uploads.silent({A: 5, B: 0}, now=30.0) == {A: 10.0}
    assert uploads.silent({A: 6, B: 0}, now=40.0) == {A: 0.0}
    assert uploads.silent({A: 6, B: 9}, now=45.0) == {A: 5.0}
    uploads.leave(A)
    uploads.admit()
    uploads.offer(A, 100)
    assert uploads.silent({A: 6, B: 9}, now=60.0) == {B: 0.0}


def test_the_shares_of_all_clients_fit_into_the_room() -> None:
    assert [Admission(100).share(clients) for clients in (0, 1, 3, 1000)] == [100, 100, 33, 0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 200))), st.integers(0, 300))
def test_random_offers_never_exceed_the_room(steps: list[tuple[int, int]], room: int) -> None:
    """A negative size stands for leaving."""
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
        assert not waiting or admitted, "a client is admitted as long as one waits"
