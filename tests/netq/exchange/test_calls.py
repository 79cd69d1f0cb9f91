"""Services and open calls."""

from __future__ import annotations

import uuid

from netq.exchange.calls import Call, Calls

A, B, C, CALLER = (uuid.UUID(int=number) for number in (1, 2, 3, 9))


def server_of(found: Call | str) -> uuid.UUID:
    assert isinstance(found, Call)
    return found.server


def test_clients_are_called_in_turn_and_within_their_limits() -> None:
    calls = Calls(10)
    calls.serve("add", A, 1)
    calls.serve("add", B, 2)
    found = [calls.call("add", CALLER, number) for number in range(4)]
    assert [server_of(each) for each in found[:3]] == [A, B, B]
    assert found[3] == ""
    first = found[0]
    assert isinstance(first, Call)
    assert calls.finish(first.number, B) is None  # it is A's
    assert calls.finish(first.number, A) == first
    assert calls.finish(first.number, A) is None
    assert server_of(calls.call("add", CALLER, 5)) == A
    assert calls.services() == {"add": 2}
    assert (list(calls.services_of(A)), list(calls.services_of(C))) == (["add"], [])


def test_service_that_nobody_offers_is_absent() -> None:
    calls = Calls(10)
    assert calls.call("add", CALLER, 1) == "no client offers this service"
    calls.serve("add", A, 5)
    calls.serve("add", A, 0)
    assert calls.call("add", CALLER, 1) == "no client offers this service"
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
        while not calls.make_room(caller)[0]:
            calls.call("hang", caller, 1)
        calls.caller_leaves(caller, 5.0)
    assert len(calls._open) == 1000
    full, lost = calls.make_room(CALLER)
    assert not full
    assert not any(call.is_awaited for call in lost)
    last = calls.call("hang", CALLER, 1)
    assert isinstance(last, Call)
    assert last.is_awaited
    calls.expire(6.0)
    assert len(calls._open) == 1
    assert calls.finish(last.number, A) is last
    assert (len(calls._open), calls._at, calls._load) == (0, {}, {})


def test_client_that_is_away_gets_calls_when_it_is_back() -> None:
    calls = Calls(10)
    calls.serve("add", A, 5)
    calls.leave(A, returns=True)
    assert calls.call("add", CALLER, 1) == "no client offers this service"
    calls.come_back(A)
    assert server_of(calls.call("add", CALLER, 1)) == A


def test_messages_to_a_client_are_bounded() -> None:
    calls = Calls(2)
    found = [calls.send(A, CALLER, number) for number in range(3)]
    assert found[2] == ""
    assert server_of(calls.send(B, CALLER, 4)) == B
    first = found[0]
    assert isinstance(first, Call)
    calls.finish(first.number, A)
    assert server_of(calls.send(A, CALLER, 5)) == A


def test_numbers_of_another_exchange_do_not_fit() -> None:
    first, second = Calls(1).send(A, CALLER, 1), Calls(1).send(A, CALLER, 1)
    assert isinstance(first, Call)
    assert isinstance(second, Call)
    assert first.number != second.number
