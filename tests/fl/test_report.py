"""Reports: what a client's failure says, and which of several failures of one client stays."""

from __future__ import annotations

import pytest

import fl
from fl.report import ClientFailure, FailureKind, RoundReport, RoundState
from tests.fl.federation import A, B, C


def test_a_reason_is_printable_and_bounded() -> None:
    assert str(ClientFailure(FailureKind.FAILED, "red \x1b[31m\nline")) == r"red \x1b[31m\nline"
    assert len(ClientFailure(FailureKind.FAILED, "x" * 10**6).reason) < 1000


def test_the_line_of_a_report_is_printable() -> None:
    """A name of the evaluation may come from the user's `measure`."""
    report = RoundReport(1, (A,), {}, {}, {"server_\x1b[31m": 0.5}, 1.0, 10, 20)
    assert str(report).isprintable()
    assert r"evaluated server_\x1b[31m 0.5, 1.00 s" in str(report)


@pytest.mark.parametrize("later", [kind for kind in FailureKind if kind is not FailureKind.FAILED])
def test_the_clients_own_reason_stays(later: FailureKind) -> None:
    state = RoundState({A: None})
    own = ClientFailure(FailureKind.FAILED, "no memory")
    assert state.fail(A, own)
    assert not state.fail(A, ClientFailure(later, "another reason"))
    assert state.failures == {A: own}


@pytest.mark.parametrize("earlier", FailureKind)
def test_a_stale_answer_replaces_no_failure(earlier: FailureKind) -> None:
    state = RoundState()
    assert state.fail(A, ClientFailure(earlier, "the reason"))
    assert not state.fail(A, ClientFailure(FailureKind.STALE, "it answered round 1"))
    assert str(state.failures[A]) == "the reason"


def test_the_clients_own_reason_replaces_that_it_is_late() -> None:
    state = RoundState({A: None})
    assert state.fail(A, ClientFailure(FailureKind.LATE, "no answer within 1 s"))
    assert state.fail(A, ClientFailure(FailureKind.FAILED, "no memory"))
    assert str(state.failures[A]) == "no memory"


def test_metrics_of_a_report_are_bounded() -> None:
    """Each client may send 1,000 names; a report has 1,000 of all of them, those that came first."""
    state = RoundState()
    for client in (A, B):
        state.count(client, fl.Report(1, {f"{client.int} {number}": 1.0 for number in range(1000)}))
    assert len(state.metrics) == 1000
    assert {name.split()[0] for name in state.metrics} == {str(A.int)}
    state.count(C, fl.Report(3, {f"{A.int} 0": 5.0}))
    assert state.metrics[f"{A.int} 0"] == 4.0


@pytest.mark.parametrize(
    ("numbers", "named"), [((1, 1), {}), ((1, 9), {}), ((1, 1, 2), {}), ((1, 1, 3), {C: 0.6}), ((5, 1, 3), {A: 5 / 9})]
)
def test_a_client_with_more_than_half_of_the_examples_is_named(
    numbers: tuple[int, ...], named: dict[object, float]
) -> None:
    state = RoundState()
    for client, number in zip((A, B, C), numbers, strict=False):
        state.count(client, fl.Report(number))
    assert state.shares() == named
