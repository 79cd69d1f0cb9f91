"""Metrics of clients: what may be one, and the means and sums that a round makes of them."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import fl
from fl.callbacks.jsonl import record
from fl.envelope import Job
from fl.messages import MESSAGES, Reply
from fl.metrics import MAX_ARRAYS, MAX_ELEMENTS, Merged, checked, for_json, merged, scalars
from fl.report import RoundReport
from fl.server.answers import Answers
from netq.errors import Unreadable
from netq.utils.stream import Stream
from tests.fl.federation import A, B, Federation, filled, gives

NAN = math.nan


def of_clients(*metrics: Mapping[str, Any], weights: tuple[int, ...] = ()) -> Merged:
    clients = dict(enumerate(map(checked, metrics)))
    return merged(clients, dict(enumerate(weights or [1] * len(metrics))), {}, len(metrics))


def plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in metrics.items()}


# What may be one


@pytest.mark.parametrize(
    "value",
    [[0.5, 2], (0.5, 2), np.array([0.5, 2]), np.array([0.5, 2], ">f4"), torch.tensor([0.5, 2.0])],
    ids=["list", "tuple", "float64", "big-endian", "torch"],
)
def test_a_list_or_array_becomes_an_array_of_its_own(value: Any) -> None:
    found = checked({"x": value})["x"]
    assert isinstance(found, np.ndarray)
    assert (found.dtype.str, found.tolist()) == ("<f8", [0.5, 2])
    assert found.base is None  # a view would keep the memory of a message


def test_arrays_are_bounded_by_what_a_float32_holds_and_may_be_nan() -> None:
    found: Any = checked({"x": np.array([[1e300, -1e300], [NAN, math.inf]])})["x"]
    largest = float(np.finfo(np.float32).max)
    assert found.tolist()[0] == [largest, -largest]
    assert math.isnan(found[1, 0])
    assert found[1, 1] == math.inf


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], r"float64 of shape \(0,\)"),
        ([[1], [2, 3]], "list"),
        (["a", 1], "list"),
        (np.array(["a"]), "<U1 of shape"),
        (np.array([1j]), "complex128 of shape"),
        (np.array([None]), "object of shape"),
        (np.zeros((1,) * 9), "float64 of shape"),
        (np.zeros(MAX_ELEMENTS + 1), "float64 of shape"),
        (torch.zeros(2, requires_grad=True), "Tensor"),
        (fl.Sum([[1], [2, 3]]), "list"),
        (["x" * 10**6] + ["x"] * 10**5, "list"),  # as texts of one length they would take 400 GB
        (json.loads("[" * 500 + "1" + "]" * 500), "list"),
    ],
)
def test_other_values_are_refused(value: Any, said: str) -> None:
    expected = "expected a number, or a list or array of 1 to 65536 numbers in 8 dimensions at most"
    with pytest.raises(fl.InvalidUpdate, match=rf"metrics\['x'\]: {said}.*{expected}"):
        checked({"x": value})


def test_elements_and_arrays_of_a_message_are_bounded() -> None:
    half = np.zeros(MAX_ELEMENTS // 2)
    assert len(checked({"a": half, "b": fl.Sum(half), "c": 0.5})) == 3
    with pytest.raises(fl.InvalidUpdate, match="elements of all arrays in metrics: int 65537; expected 65536 at most"):
        checked({"a": half, "b": fl.Sum(half), "c": [0.5]})
    with pytest.raises(fl.InvalidUpdate, match="arrays in metrics: int 101; expected 100 at most"):
        checked({str(number): [0.5] for number in range(MAX_ARRAYS + 1)})


# Means and sums


def test_an_array_is_averaged_by_element_and_examples() -> None:
    found = of_clients({"recall": [0.0, 1.0]}, {"recall": [1.0, 0.5]}, weights=(1, 3))
    assert plain(found.values) == {"recall": [0.75, 0.625]}


def test_equal_arrays_are_their_mean() -> None:
    assert plain(of_clients(*[{"x": [0.1, 0.3]}] * 3, weights=(7, 11, 13)).values) == {"x": [0.1, 0.3]}


def test_a_sum_is_added_whatever_the_examples() -> None:
    one, other = {"n": fl.Sum(2), "c": fl.Sum([[1, 0], [2, 3]])}, {"n": fl.Sum(3), "c": fl.Sum([[4, 1], [0, 9]])}
    found = of_clients(one, other, weights=(1, 1000))
    assert plain(found.values) == {"n": 5.0, "c": [[5, 1], [2, 12]]}
    assert type(found.values["n"]) is float


def test_an_array_with_nan_is_left_out_as_a_whole() -> None:
    values, not_finite, left_out, *_ = of_clients({"x": [0.5, NAN]}, {"x": [0.5, 0.25]}, {"x": [math.inf, 0.0]})
    assert (plain(values), not_finite, left_out) == ({"x": [0.5, 0.25]}, {"x": 2}, {})
    everywhere = of_clients({"x": [0.5, NAN], "n": fl.Sum(NAN)})
    assert np.isnan(everywhere.values["x"]).tolist() == [True, True]
    assert math.isnan(everywhere.values["n"])
    assert everywhere.not_finite == {"x": 1, "n": 1}


@pytest.mark.parametrize("other", [0.5, fl.Sum([0.5, 0.5]), [0.5], [[0.5, 0.5]], [NAN]])
def test_a_value_of_another_form_is_left_out_and_counted(other: Any) -> None:
    values, not_finite, left_out, *_ = of_clients({"x": other}, {"x": [0.25, 1]}, {"x": [0.75, 0]}, {"y": 1})
    assert plain({"x": values["x"]}) == {"x": [0.5, 0.5]}
    assert (not_finite, left_out) == ({}, {"x": 1})


def test_an_array_of_few_clients_is_in_no_report() -> None:
    """One client could fill a disk: callbacks write what the report has."""
    answers = {"loss": 1.0, "mine": np.ones(1000), "n": 1.0}, {"loss": 1.0}
    assert list(of_clients(*answers).values) == ["loss", "n"]


def test_equally_frequent_forms_do_not_depend_on_the_order() -> None:
    answers = {"x": 0.5}, {"x": [0.5]}, {"x": fl.Sum(1)}
    forward, backward = of_clients(*answers), of_clients(*reversed(answers))
    assert plain(forward.values) == plain(backward.values)
    assert forward.left_out == backward.left_out == {"x": 2}


def test_arrays_of_many_clients_are_bounded_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl.server.answers._MAX_ELEMENTS", 10)
    state = Answers()
    for client in range(5):
        state.count(uuid.UUID(int=client), fl.Report(1, {"c": fl.Sum(np.ones(4)), "loss": 0.5}))
    state.count(uuid.UUID(int=4), fl.Report(1, {"late": [1.0, 2.0, 3.0]}))
    found = state.merged()
    assert plain(found.values) == {"c": [2, 2, 2, 2], "loss": 0.5}
    assert found.left_out == {"c": 2}
    state.count(uuid.UUID(int=0), fl.Report(1, {"loss": 0.5}))  # an asynchronous strategy takes another update
    state.count(uuid.UUID(int=4), fl.Report(1, {"c": fl.Sum(np.ones(4)), "loss": 0.5}))
    assert state.merged().left_out == {"c": 2}
    assert plain(state.merged().values)["c"] == [2, 2, 2, 2]
    assert state._elements == 8


# On their way


def test_arrays_and_sums_travel() -> None:
    metrics = {"x": [[1, 2.5]], "n": fl.Sum(3), "c": fl.Sum(np.eye(2)), "auc": NAN, "loss": 0.5}
    for content in (fl.Report(1, metrics), fl.Update({"w": np.zeros(1)}, 1, metrics)):
        reply: Any = MESSAGES.load(Stream([bytearray(bytes(MESSAGES.dump(Reply(Job(1, 1, "train"), content))))]))
        found = reply.content.metrics
        assert plain({"x": found["x"]}) == {"x": [[1, 2.5]]}
        assert found["n"] == fl.Sum(3.0)
        assert found["c"].value.tolist() == [[1, 0], [0, 1]]
        assert math.isnan(found["auc"])
        assert found["loss"] == 0.5


@pytest.mark.parametrize("metric", [{"sum": 1, "mean": 2}, {"mean": 1}, {"sum": {"sum": 1}}, {"sum": None}, {}])
def test_other_objects_are_no_metrics(metric: Any) -> None:
    from fl.tensors.serialization import messages

    content = {"type": "Report", "num_examples": 1, "metrics": {"x": metric}}
    message = messages().dump({"type": "Reply", "job": [1, 1, "evaluate"], "content": content})
    with pytest.raises(Unreadable, match=r"metrics\['x'\]: .*expected a number, or a list or array"):
        MESSAGES.load(Stream([bytearray(bytes(message))]))


def test_the_arrays_count_as_bytes_of_an_update() -> None:
    assert fl.Update({"w": np.zeros(2)}, 1, {"x": np.zeros(10), "n": fl.Sum(1), "loss": 1}).nbytes == 16 + 80


def test_a_report_has_the_sum_of_confusion_matrices() -> None:
    large = np.full((200, 200), 2)

    def evaluate(model: Any, config: Any) -> fl.Report:
        return fl.Report(1, {"confusion": fl.Sum([[3, 1], [0, 4]]), "large": large})

    def train(model: Any, config: Any) -> fl.Update:
        return fl.Update(filled(1), 1, {"confusion": fl.Sum(large), "loss": 0.5})

    with Federation(evaluate=True) as federation:
        federation.join(A, train, evaluate)
        federation.join(B, train, evaluate)
        report = federation.round(2)
    assert report.failures == report.evaluation_failures == {}
    assert report.evaluation["confusion"].tolist() == [[6, 2], [0, 8]]
    assert np.array_equal(report.evaluation["large"], large)
    assert np.array_equal(report.metrics["confusion"], 2 * large)
    assert report.client_evaluation[A]["confusion"].value.tolist() == [[3, 1], [0, 4]]
    assert ", 0 failed, loss 0.5, " in str(report)


def test_a_client_with_another_shape_is_counted_in_the_report() -> None:
    with Federation(min_clients=3) as federation:
        for client, value in zip((A, B, uuid.UUID(int=3)), ([1.0, 2.0], [1.0, 2.0], [1.0]), strict=True):
            federation.join(client, gives(1, x=value))  # type: ignore[arg-type]
        report = federation.round(3)
    assert (report.metrics["x"].tolist(), report.left_out) == ([1, 2], {"x": 1})


# In files and on graphs


def test_json_has_lists_and_null() -> None:
    found = [for_json(value) for value in (np.array([[1, NAN], [2, math.inf]]), 2.0, NAN)]
    assert found == [[[1.0, None], [2.0, None]], 2.0, None]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_json_has_the_numbers_of_each_client() -> None:
    of_a = {A: checked({"x": [1, 2], "n": fl.Sum(2), "c": fl.Sum([1, 2]), "auc": NAN})}
    report = RoundReport(1, (A,), {}, {"x": np.ones(2)}, {}, 1.0, 10, 20, client_metrics=of_a)
    found = record(report, client_metrics=True)
    assert (found["metrics"], found["client_metrics"]) == ({"x": [1.0, 1.0]}, {str(A): {"n": 2.0, "auc": None}})


def test_only_numbers_are_scalars() -> None:
    assert scalars({"x": np.zeros(2), "loss": 0.5}) == {"loss": 0.5}
    report = RoundReport(1, (A,), {}, {"x": np.zeros(2), "loss": 0.5}, {}, 1.0, 10, 20, left_out={"loss": 1})
    assert "0 failed, loss 0.5 (1 left out), 1.00 s" in str(report)
