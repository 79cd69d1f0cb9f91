"""Services and open calls."""

from __future__ import annotations

import uuid
from contextlib import suppress

import pytest

from netq.exchange.calls import Calls
from netq.exchange.envelope import Rejected

A, B, C, CALLER = (uuid.UUID(int=number) for number in (1, 2, 3, 9))


ABSENT = "^no client offers this service$"
FULL = "^too many calls are open there$"


def test_clients_are_called_in_turn_and_within_their_limits() -> None:
    calls = Calls(10)
    calls.serve("add", A, 1)
    calls.serve("add", B, 2)
    found = [calls.call("add", CALLER, number) for number in range(3)]
    assert [each.server for each in found] == [A, B, B]
    with pytest.raises(Rejected, match=FULL):
        calls.call("add", CALLER, 3)
    first = found[0]
    assert calls.finish(first.number, B) is None  # it is A's
    assert calls.finish(first.number, A) == first
    assert calls.finish(first.number, A) is None
    assert calls.call("add", CALLER, 5).server == A
    assert calls.services() == {"add": 2}
    assert (list(calls.services_of(A)), list(calls.services_of(C))) == (["add"], [])


def test_service_that_nobody_offers_is_absent() -> None:
    calls = Calls(10)
    with pytest.raises(Rejected, match=ABSENT):
        calls.call("add", CALLER, 1)
    calls.serve("add", A, 5)
    calls.serve("add", A, 0)
    with pytest.raises(Rejected, match=ABSENT):
        calls.call("add", CALLER, 1)
    assert calls.services() == {}


def test_client_that_leaves_answers_nothing() -> None:
    calls = Calls(10)
    calls.serve("add", A, 5)
    calls.serve("double", A, 5)
    found = [calls.call("add", CALLER, 1), calls.call("double", CALLER, 2), calls.send(A, CALLER, 3)]
    assert calls.leave(A, returns=False) == found
    assert calls.services() == {}
    assert (len(calls._open), calls._at, calls._load) == (0, {}, {})


def test_open_calls_are_bounded_and_given_back_after_a_time() -> None:
    calls = Calls(10)
    calls.serve("hang", A, 2**32 - 1)
    for caller in (uuid.UUID(int=number) for number in range(100, 105)):
        with suppress(Rejected):
            while True:
                calls.make_room(caller)
                calls.call("hang", caller, 1)
        calls.caller_leaves(caller, 5.0)
    assert len(calls._open) == 1000
    lost = calls.make_room(CALLER)
    assert lost
    assert not any(call.is_awaited for call in lost)
    last = calls.call("hang", CALLER, 1)
    assert last.is_awaited
    calls.expire(6.0)
    assert len(calls._open) == 1
    assert calls.finish(last.number, A) is last
    assert (len(calls._open), calls._at, calls._load) == (0, {}, {})


def test_client_that_is_away_gets_calls_when_it_is_back() -> None:
    calls = Calls(10)
    calls.serve("add", A, 5)
    calls.leave(A, returns=True)
    with pytest.raises(Rejected, match=ABSENT):
        calls.call("add", CALLER, 1)
    calls.come_back(A)
    assert calls.call("add", CALLER, 1).server == A


def test_messages_to_a_client_are_bounded() -> None:
    calls = Calls(2)
    first, _ = calls.send(A, CALLER, 1), calls.send(A, CALLER, 2)
    with pytest.raises(Rejected, match=FULL):
        calls.send(A, CALLER, 3)
    assert calls.send(B, CALLER, 4).server == B
    calls.finish(first.number, A)
    assert calls.send(A, CALLER, 5).server == A


def test_numbers_of_another_exchange_do_not_fit() -> None:
    first, second = Calls(1).send(A, CALLER, 1), Calls(1).send(A, CALLER, 1)
    assert first.number != second.number
