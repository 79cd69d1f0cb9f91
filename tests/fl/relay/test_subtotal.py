"""What a server makes of the sums of relays, good and bad."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fl
from fl.envelope import Job
from fl.errors import InvalidUpdate
from fl.messages import MESSAGES, Reply, Task
from fl.subtotal import Subtotal
from tests.fl.federation import A, B, C, D, Federation, filled, gives, reasons, reply

GOOD = {"values": filled(2.0), "bases": {}, "weight": 4.0, "count": 2}


def subtotal(folded: Any = GOOD, clients: Any = None, **fields: Any) -> Subtotal:
    found = {C: 3, D: 1} if clients is None else clients
    return Subtotal({} if folded == {} else {"strategy": folded, "statistics": {}}, found, **fields)


def sends(content: Subtotal) -> Callable[[Task], Any]:
    return lambda task: [reply(task, content)]


@pytest.mark.parametrize("second", ["relay", "client"])
def test_no_client_counts_twice(second: str) -> None:
    with Federation(relays=True, min_clients=1) as federation:
        federation.join_raw(A, sends(subtotal()))
        if second == "relay":
            federation.join_raw(B, sends(subtotal({**GOOD, "values": filled(50.0)}, {D: 1, B: 1})))
        else:
            federation.join(D, gives(50.0))
        report = federation.round(2)
        once = {C, D} if federation.w == [2.0] * 3 else {D, B} if second == "relay" else {D}
        assert set(report.clients) == once
        [why] = reasons(report).values()
        assert "counts in this round already, through another relay" in why


def test_a_report_has_the_clients_of_relays_and_not_these() -> None:
    failed = {uuid.UUID(int=9): fl.ClientFailure(fl.FailureKind.LATE, "no answer within 8 s")}
    sent = subtotal(
        metrics={"loss": 0.5, "n": fl.Sum(2.0)},
        not_finite={"auc": 1},
        failures=failed,
        skipped={uuid.UUID(int=8): "no data"},
        names={C: "north", uuid.UUID(int=9): "south"},
    )
    with Federation(relays=[str(A)]) as federation:
        federation.join_raw(A, sends(sent))
        federation.join(B, gives(5.0, 2, loss=1.0))
        report = federation.round(2)
        assert federation.w == [3.0] * 3
    assert report.num_examples == {C: 3, D: 1, B: 2}
    assert (report.failures, report.skipped) == (failed, {uuid.UUID(int=8): "no data"})
    assert report.names == {C: "north", uuid.UUID(int=9): "south"}
    assert report.metrics == {"loss": pytest.approx(4 / 6), "n": 2.0}
    assert report.not_finite == {"auc": 1}
    assert report.client_metrics[B] == {"loss": 1.0}


def test_a_client_is_a_relay_only_if_the_server_says_so() -> None:
    with Federation(relays=["relay.north"], min_clients=1) as federation:
        federation.join_raw(A, sends(subtotal()))
        federation.join(B, gives(5.0))
        report = federation.round(2)
        assert federation.w == [5.0] * 3
    assert report.failures[A].why is fl.FailureKind.INVALID
    assert "not among this server's relays" in str(report.failures[A])


@pytest.mark.parametrize(
    "folded",
    [
        {**GOOD, "values": {"v": np.zeros(3, np.float32)}},
        {**GOOD, "values": {"w": np.zeros(4, np.float32)}},
        {**GOOD, "values": filled(np.nan)},
        {**GOOD, "values": [1]},
        {**GOOD, "values": {"w": 1.0}},
        {**GOOD, "weight": -1.0},
        {**GOOD, "weight": "much"},
        {**GOOD, "count": 0},
        {**GOOD, "bases": None},
        {"values": filled(1.0)},
        {"x": 1},
        None,
    ],
)
def test_a_sum_that_is_none_is_refused_and_changes_nothing(folded: Any) -> None:
    with Federation(relays=True, min_clients=1) as federation:
        federation.join_raw(A, sends(subtotal(folded)))
        federation.join(B, gives(5.0))
        report = federation.round(2)
        assert federation.w == [5.0] * 3
    assert report.failures[A].why is fl.FailureKind.INVALID


def test_no_relay_makes_the_model_infinite() -> None:
    model = {"w": np.zeros(3, np.float32), "bn.running_mean": np.ones(2, np.float16)}
    statistics = {"values": {"bn.running_mean": np.full(2, 1e30, np.float32)}, "bases": {}, "weight": 1.0, "count": 1}
    sent = Subtotal({"strategy": {**GOOD}, "statistics": statistics}, {C: 1})
    with Federation(model, relays=True, min_clients=1) as federation:
        federation.join_raw(A, sends(sent))
        federation.join(B, lambda model, config: fl.Update(model, 1))
        report = federation.round(2)
        assert federation.w == [0.0] * 3
    assert "has a mean beyond 65504, the largest float16" in str(report.failures[A])


def test_a_relay_without_an_update_has_failed_and_its_clients_are_in_the_report() -> None:
    failed = {C: fl.ClientFailure(fl.FailureKind.FAILED, "no data"), D: fl.ClientFailure(fl.FailureKind.LATE, "late")}
    with Federation(relays=True, min_clients=1) as federation:
        federation.join_raw(A, sends(subtotal({}, {}, failures=failed)))
        federation.join(B, gives(5.0))
        report = federation.round(2)
    assert set(report.failures) == {A, C, D}
    assert str(report.failures[A]) == (
        "none of its clients has an answer that counts: 1 FAILED, 1 LATE; the first: no data"
    )


def test_clients_of_a_round_that_does_not_count_are_void() -> None:
    with Federation(relays=True, min_clients=2) as federation:
        federation.join_raw(A, sends(subtotal()))
        federation.join(B, lambda model, config: fl.Skip("none"))
        report = federation.round(2)
    assert not report.clients
    assert {id: each.why for id, each in report.failures.items()} == dict.fromkeys([A, C, D], fl.FailureKind.VOID)


def test_a_subtotal_arrives_as_it_was() -> None:
    sent = subtotal(failures={A: fl.ClientFailure(fl.FailureKind.LOST, "gone")}, names={C: "north"}, metrics={"a": 1.0})
    found = MESSAGES.load(MESSAGES.dump(Reply(Job(1, 2, "train"), sent))).content
    assert (found.clients, found.failures, found.names, found.metrics) == (
        *(sent.clients, sent.failures, sent.names, sent.metrics),
    )
    assert found.folded["strategy"]["values"]["w"].tolist() == [2.0] * 3


@pytest.mark.parametrize(
    "fields",
    [
        {"clients": {C: 0}},
        {"clients": {C: 2**60}},
        {"clients": [C]},
        {"folded": []},
        {"clients": {C: 1}, "not_finite": {"a": -1}},
        {"clients": {C: 1}, "metrics": {"a": "x"}},
    ],
)
def test_fields_that_are_wrong_are_refused(fields: Any) -> None:
    with pytest.raises(InvalidUpdate):
        Subtotal(**{"folded": {}, "clients": {}, **fields})
