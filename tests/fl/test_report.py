"""Reports: what a client's failure says, which failure of a client stays, which metrics of the clients are reported."""

from __future__ import annotations

import itertools
import math
import uuid
from collections.abc import Iterable
from typing import Any

import pytest

import fl
from fl.report import ClientFailure, FailureKind, RoundReport
from fl.server.answers import Answers
from tests.fl.federation import A, B, C


def test_a_reason_is_printable_and_bounded() -> None:
    assert str(ClientFailure(FailureKind.FAILED, "red \x1b[31m\nline")) == r"red \x1b[31m\nline"
    assert len(ClientFailure(FailureKind.FAILED, "x" * 10**6).reason) < 1000


@pytest.mark.parametrize("later", [kind for kind in FailureKind if kind is not FailureKind.FAILED])
def test_the_clients_own_reason_stays(later: FailureKind) -> None:
    state = Answers()
    state.ask(A, is_regular=True)
    own = ClientFailure(FailureKind.FAILED, "no memory")
    assert state.fail(A, own)
    assert not state.fail(A, ClientFailure(later, "another reason"))
    assert state.failures == {A: own}


@pytest.mark.parametrize("earlier", FailureKind)
def test_a_stale_answer_replaces_no_failure(earlier: FailureKind) -> None:
    state = Answers()
    assert state.fail(A, ClientFailure(earlier, "the reason"))
    assert not state.fail(A, ClientFailure(FailureKind.STALE, "it answered round 1"))
    assert str(state.failures[A]) == "the reason"


def test_the_clients_own_reason_replaces_that_it_is_late() -> None:
    state = Answers()
    state.ask(A, is_regular=True)
    assert state.fail(A, ClientFailure(FailureKind.LATE, "no answer within 1 s"))
    assert state.fail(A, ClientFailure(FailureKind.FAILED, "no memory"))
    assert str(state.failures[A]) == "no memory"


def ended(*answers: dict[str, float], numbers: Iterable[int] = itertools.repeat(1)) -> Answers:
    """A round in which as many clients have answered, in this order."""
    state = Answers()
    for client, (metrics, number) in enumerate(zip(answers, numbers, strict=False)):
        state.count(uuid.UUID(int=client), fl.Report(number, metrics))
    return state


JUNK = {f"{number:04}": 1.0 for number in range(1000)}


def test_metrics_are_means_by_number_of_examples() -> None:
    assert ended({"loss": 1.0, "a": 7.0}, {"loss": 5.0}, numbers=(1, 3)).merged().values == {"loss": 4.0, "a": 7.0}
    assert ended({}).merged().values == Answers().merged().values == {}


def test_equal_values_are_their_mean() -> None:
    """A metric that stays the same is no improvement."""
    for numbers in ((1, 2, 3), (7, 11, 13), (2**53, 1, 3)):
        assert ended(*[{"loss": 0.1}] * 3, numbers=numbers).merged().values == {"loss": 0.1}


@pytest.mark.parametrize("liar", range(5))
def test_one_client_hides_no_metric_of_the_others(liar: int) -> None:
    answers = [{"loss": 1.0, "accuracy": 0.5}] * 5
    answers[liar] = JUNK
    means = ended(*answers).merged().values
    assert list(means)[:2] == ["accuracy", "loss"]
    assert (means["accuracy"], means["loss"]) == (0.5, 1.0)
    assert len(means) == 100  # names of few clients fill no more


def test_a_minority_keeps_its_metrics() -> None:
    boards = [{"loss": 1.0, "usage.joules": 2.0}] * 2 + [{"loss": 1.0}] * 3
    assert list(ended(*boards, JUNK).merged().values)[:3] == ["loss", "usage.joules", "0000"]


def test_metrics_of_most_clients_are_bounded_at_1000() -> None:
    many = {f"class {number:04}": 1.0 for number in range(600)}
    assert list(ended(many, many, JUNK).merged().values) == list(many)
    assert len(ended({**many, **dict.fromkeys(list(JUNK)[:400], 1.0)}, JUNK, many).merged().values) == 1000


def test_a_value_that_is_not_finite_is_left_out_and_counted() -> None:
    answers = ({"auc": 0.5, "loss": math.nan}, {"auc": math.nan, "loss": math.inf}, {"auc": 1.0})
    values, not_finite, *_ = ended(*answers, numbers=(1, 100, 3)).merged()
    assert (values["auc"], not_finite) == (0.875, {"auc": 1, "loss": 2})
    assert math.isnan(values["loss"])


def test_a_client_counts_with_its_last_answer() -> None:
    """An asynchronous strategy takes several updates of a client in a round."""
    state = ended({"loss": 1.0}, {"loss": 3.0})
    state.count(uuid.UUID(int=0), fl.Report(3, {"loss": 7.0}))
    assert state.merged().values == {"loss": 6.0}


def test_names_of_the_servers_metrics_are_not_for_clients() -> None:
    state = ended({"server_accuracy": 1.0, "loss": 1.0})
    assert state.merged().values == {"loss": 1.0}
    assert list(state.metrics.values()) == [{"loss": 1.0}]


def line(**changes: Any) -> str:
    return str(RoundReport(**{"number": 1, "clients": (A,), "failures": {}, "seconds": 1.0, **EMPTY, **changes}))


EMPTY: dict[str, Any] = {"metrics": {}, "evaluation": {}, "bytes_in": 10, "bytes_out": 20}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("loss", "loss"),
        ("val/top-5 (%)", "'val/top-5 (%)'"),
        ("f1[macro]", "f1[macro]"),
        ("准确率", "准确率"),
        ("", "''"),
        ("loss 0.001, 99 failed, accuracy", "'loss 0.001, 99 failed, accuracy'"),
        ("a\u0301\u0301\u0301", r"'a\u0301\u0301\u0301'"),
        ("\u202eycarucca", r"'\u202eycarucca'"),
        ("\x1b[31m", r"'\x1b[31m'"),
        ("\ud800", r"'\ud800'"),
    ],
)
def test_a_name_is_no_other_part_of_the_line(name: str, shown: str) -> None:
    found = line(metrics={name: 0.5})
    assert found == f"round 1: 1 clients, 0 failed, {shown} 0.5, 1.00 s, 0.01 kB in, 0.02 kB out"
    assert found.isprintable()


def test_a_skip_outweighs_a_failure() -> None:
    state = Answers()
    state.ask(A, is_regular=True)
    state.fail(A, ClientFailure(FailureKind.LATE, "late"))
    state.skip(A, "no data")
    assert not state.fail(A, ClientFailure(FailureKind.LOST, "gone"))
    assert (state.pending(), state.failures, state.skipped) == ([], {}, {A: "no data"})
    assert state.waiting == 0


def test_a_line_has_the_failures_of_training_and_of_evaluation() -> None:
    failures = {A: ClientFailure(FailureKind.LATE, "late")}
    assert ", 0 failed, 1 evaluations failed, 1.00 s" in line(evaluation_failures=failures)
    assert ", 1 failed, 1.00 s" in line(failures=failures)


def test_a_line_says_of_how_many_clients_a_metric_was_not_finite() -> None:
    found = line(metrics={"auc": 0.83}, not_finite={"auc": 1}, evaluation={"auc": 0.5})
    assert ", auc 0.83 (1 not finite), evaluated auc 0.5, " in found


def test_a_line_has_20_metrics_of_training_and_of_evaluation() -> None:
    found = line(metrics={**JUNK, "usage.joules": 1.0}, evaluation={"server_accuracy": 0.5, **JUNK})
    assert ", 0019 1, 980 more, evaluated server_accuracy 0.5, evaluated 0000 1" in found
    assert found.endswith(", evaluated 0018 1, evaluated 981 more, 1.00 s, 0.01 kB in, 0.02 kB out")


@pytest.mark.parametrize(
    ("numbers", "named"), [((1, 1), {}), ((1, 9), {}), ((1, 1, 2), {}), ((1, 1, 3), {C: 0.6}), ((5, 1, 3), {A: 5 / 9})]
)
def test_a_client_with_more_than_half_of_the_examples_is_named(
    numbers: tuple[int, ...], named: dict[object, float]
) -> None:
    state = Answers()
    for client, number in zip((A, B, C), numbers, strict=False):
        state.count(client, fl.Report(number))
    assert state.shares() == named
