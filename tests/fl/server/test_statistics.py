"""Statistics over a network: what clients give is summed, under masks to the same bit; what is wrong is left out."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import fl
import netq
from fl.column_statistics import Query
from fl.envelope import Job
from fl.messages import Answered, Masked, Reply, Report, Task
from fl.server.members import Members
from netq.errors import InvalidOption
from netq.testing.log import LogRecorder
from tests.fl.federation import SOON, Federation, adds, at, reply
from tests.fl.relay.tree import Tree

IDS = [uuid.UUID(int=number) for number in range(1, 5)]
ASKED = {"age": fl.Column(0, 120, 24), "weight": fl.Column(30, 150)}
MASKED: dict[str, Any] = {"secure": fl.SecureAggregation(), "strategy": fl.FedAvg(max_examples="equal")}


def data(number: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    return {"age": random.normal(60, 30, 300 + number), "weight": random.normal(70, 20, 200), "name": np.array(["a"])}


def gives(columns: Any, **settings: Any) -> fl.Client:
    return fl.Client(adds(1), columns=columns if callable(columns) else lambda config: columns, **settings)


def join(found: Federation, id: uuid.UUID, columns: Any, **settings: Any) -> Future[Any]:
    return found.start(gives(columns, **settings).run, at(found.server.netloc, id))


def asked(clients: list[dict[str, Any]], columns: Any = ASKED, least: int = 10, **settings: Any) -> fl.StatisticsReport:
    """Return what these clients give, each with `columns` and further arguments of fl.Client."""
    with Federation(min_clients=len(clients), **settings) as found:
        for id, each in zip(IDS, clients, strict=False):
            join(found, id, **each)
        return found.server.statistics_of(columns, least)


def plain(report: fl.StatisticsReport) -> Any:
    return report.plain()["columns"]


def test_the_sum_is_that_of_the_pooled_data() -> None:
    report = asked([{"columns": data(number), "min_count": 1} for number in range(3)], least=1)
    values = np.concatenate([data(number)["age"] for number in range(3)])
    inside = values[(values >= 0) & (values <= 120)]
    age = report.columns["age"]
    assert sorted(report.clients) == IDS[:3]
    assert (report.hidden, report.withheld, report.failures) == ({}, {}, {})
    assert (age.clients, age.count, age.above) == (3, inside.size, (values > 120).sum())
    assert age.histogram.tolist() == np.histogram(inside, 24, (0, 120))[0].tolist()
    assert age.mean == pytest.approx(inside.mean(), abs=1e-6)


@pytest.mark.parametrize("recovers", [True, False])
def test_under_masks_the_numbers_are_the_same(recovers: bool) -> None:
    clients = [{"columns": data(number)} for number in range(3)] + [{"columns": {"weight": np.full(99, 80.0)}}]
    secure = {**MASKED, "secure": fl.SecureAggregation(recovers=recovers)}
    unmasked, masked = asked(clients), asked(clients, **secure)
    assert plain(masked) == plain(unmasked)
    assert (unmasked.columns["age"].clients, unmasked.columns["weight"].clients) == (3, 4)
    assert unmasked.withheld == {IDS[3]: {"age": "it has no such column"}}
    assert masked.withheld == {}
    assert sorted(masked.clients) == IDS


def test_under_masks_no_answer_has_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, checked = list[int](), Query.checked

    def noted(query: Query, vector: Any, clients: int) -> Any:
        seen.append(clients)
        return checked(query, vector, clients)

    monkeypatch.setattr(Query, "checked", noted)
    assert asked([{"columns": data(number)} for number in range(3)], **MASKED).failures == {}
    assert seen == [3]


def test_rounds_follow_on_statistics() -> None:
    for settings in ({}, MASKED):
        with Federation(min_clients=3, **settings) as found:
            for number in range(3):
                join(found, IDS[number], data(number))
            first, second = found.server.statistics_of(ASKED), found.server.statistics_of(ASKED)
            assert plain(first) == plain(second)
            assert len(found.round(3).clients) == 3
            assert plain(found.server.statistics_of(ASKED)) == plain(first)
            assert found.w == pytest.approx([1.0] * 3, abs=1e-6)


def test_a_client_gets_the_names_that_are_asked_for() -> None:
    configs = list[Any]()

    def columns(config: Mapping[str, Any]) -> dict[str, Any]:
        configs.append([*config["columns"]])
        return data(1)

    report = asked([{"columns": columns}])
    assert configs == [["age", "weight"]]
    assert len(report.columns) == 2


def test_a_server_cannot_lower_the_minimum_of_a_client() -> None:
    few = {"columns": {"age": np.full(19, 50.0)}, "min_count": 20}
    report = asked([few, {"columns": {"age": np.full(9, 50.0)}, "min_count": 1}], {"age": ASKED["age"]}, least=1)
    assert report.withheld == {IDS[0]: {"age": "it has fewer than 20 values from 0 to 120"}}
    assert (report.failures, report.columns["age"].count, report.columns["age"].clients) == ({}, 9, 1)


def test_a_sum_with_too_few_values_is_not_shown() -> None:
    clients = [{"columns": {"age": np.full(9, 50.0)}, "min_count": 1} for _ in range(3)]
    for settings in ({}, MASKED):
        report = asked(clients, ASKED, least=28, **settings)
        assert report.columns == {}
        assert report.hidden == {
            "age": "it has fewer than 28 values in all clients",
            "weight": "no client has given it",
        }


def raises(config: Mapping[str, Any]) -> Any:
    raise OSError("no disk")


def skips(config: Mapping[str, Any]) -> Any:
    raise fl.Skip("no data yet")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (None, "this client has no function `columns`, so it gives no statistics of its data"),
        (raises, "its function `columns` has failed; the log of the client says more"),
        (skips, "it skips: no data yet"),
        (lambda config: [1], "columns returned list; expected a dict of arrays by name"),
    ],
    ids=["no function", "raises", "skips", "no dict"],
)
@pytest.mark.parametrize("settings", [{}, MASKED], ids=["unmasked", "masked"])
def test_a_client_without_statistics_says_why(columns: Any, reason: str, settings: Any) -> None:
    with Federation(min_clients=3, wait=4, **settings) as found:
        for number in range(3):
            join(found, IDS[number], data(number))
        client = fl.Client(adds(1)) if columns is None else gives(columns)
        found.start(client.run, at(found.server.netloc, IDS[3]))
        report = found.server.statistics_of(ASKED)
        assert {id: str(failure) for id, failure in report.failures.items()} == {IDS[3]: reason}
        assert report.columns["age"].clients == 3
        assert not any(each.records["train"].missed for each in found.server._members)
        assert len(found.round(4).clients) == 4


def test_a_policy_of_masks_holds_for_statistics() -> None:
    required = {"columns": data(1), "secure": fl.SecurePolicy(required=True)}
    report = asked([required, {"columns": data(2)}])
    assert "answers under secure aggregation only" in str(report.failures[IDS[0]])
    wants_more: dict[str, Any] = {"columns": data(1), "secure": fl.SecurePolicy(min_clients=9)}
    with Federation(min_clients=3, wait=4, **MASKED) as found:
        for id, each in zip(IDS, [wants_more, *({"columns": data(number)} for number in range(3))], strict=True):
            join(found, id, **each)
        report = found.server.statistics_of(ASKED)
    assert "this client wants 9 at least" in str(report.failures[IDS[0]])
    assert report.columns["age"].clients == 3


def test_with_too_few_clients_there_is_no_sum_under_masks() -> None:
    report = asked([{"columns": data(number)} for number in range(2)], **MASKED)
    assert report.columns == {}
    assert [str(failure) for failure in report.failures.values()] == [
        "there is no sum under masks: 2 clients can take part in secure aggregation; expected 3 at least"
    ] * 2


# Clients that lie


def vector(**changes: int) -> Any:
    found = Query(ASKED).measure(data(1), 10).vector
    for place, value in changes.items():
        found[int(place[1:])] = value
    return found


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (Answered({}), "a vector: NoneType; expected 58 whole numbers of 64 bits"),
        (Answered({"vector": np.zeros(3, np.int64), "withheld": {}}), "a vector: int64 of shape (3,); expected 58"),
        (Answered({"vector": vector(_0=-1), "withheld": {}}), "column 'age': its numbers contradict each other"),
        (Answered({"vector": vector(_9=2**62), "withheld": {}}), "column 'age': its numbers contradict each other"),
        (Answered({"vector": vector(), "withheld": {"x": "y"}}), "withheld: expected a text by the name of a column"),
        (Report(1), "it answered with Report; expected Answered"),
        (Masked("", 1, np.zeros(8, np.uint8)), "it answered with Masked; expected Answered"),
    ],
    ids=["nothing", "too short", "negative", "too much", "of another column", "a report", "a mask"],
)
def test_a_lie_is_left_out(content: Any, reason: str) -> None:
    with Federation(min_clients=2) as found:
        join(found, IDS[0], data(0))
        found.join_raw(IDS[1], lambda task: [reply(task, content)])
        report = found.server.statistics_of(ASKED)
        assert reason in str(report.failures[IDS[1]])
        assert report.clients == (IDS[0],)
        assert plain(report) == plain(asked([{"columns": data(0)}]))


def test_a_client_that_answers_twice_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    twice, settle = threading.Event(), Members.settle

    def waits(config: Mapping[str, Any]) -> Any:
        assert twice.wait(SOON)
        return data(0)

    def settles(members: Members, member: Any, event: Any) -> None:
        settle(members, member, event)
        twice.set()

    answer = Answered({"vector": vector(), "withheld": {}})
    with Federation(min_clients=2) as found, monkeypatch.context() as patch:
        patch.setattr(Members, "settle", settles)
        join(found, IDS[0], waits)
        found.join_raw(IDS[1], lambda task: [reply(task, answer)] * 2)
        report = found.server.statistics_of(ASKED)
    assert (sorted(report.clients), report.failures) == (IDS[:2], {})


def test_an_answer_to_another_question_is_left_out() -> None:
    def answer(task: Task) -> list[Any]:
        right = Answered({"vector": vector(), "withheld": {}})
        return [Reply(Job(task.job.run, task.job.round + 1, "statistics"), right)]

    with Federation(min_clients=1) as found:
        found.join_raw(IDS[1], answer)
        report = found.server.statistics_of(ASKED)
        assert "it answered round 2 (statistics); expected round 1 (statistics)" in str(report.failures[IDS[1]])


def test_a_vector_under_masks_that_is_none_voids_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Query.measure

    def lies(query: Query, found: Any, least: int) -> Any:
        answer = measure(query, found, least)
        answer.vector[9] += 2**50 * ("lies" in found)
        return answer

    monkeypatch.setattr(Query, "measure", lies)
    clients = [{"columns": data(number)} for number in range(3)]
    clients[1]["columns"]["lies"] = np.zeros(3)
    report = asked(clients, **MASKED)
    assert report.clients == ()
    assert {str(failure).partition(";")[0] for failure in report.failures.values()} == {
        "there is no sum under masks: column 'age': its numbers contradict each other"
    }


def test_a_client_that_is_late_is_left_out() -> None:
    with Federation(min_clients=2, deadline=3.0) as found:  # the other one has that long on a busy machine
        join(found, IDS[0], data(0))
        found.join_raw(IDS[1], lambda task: [])
        report = found.server.statistics_of(ASKED)
        assert report.clients == (IDS[0],)
        assert report.failures[IDS[1]].why is fl.FailureKind.LATE
        assert "no answer" in str(report.failures[IDS[1]])


def test_a_client_that_is_at_work_is_not_asked() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def waits(model: Any, config: Any) -> fl.Update:
        begun.set()
        goes_on.wait(SOON)
        return fl.Update(model, 1)

    with Federation(min_clients=1, strategy=fl.FedAsync(), wait=2) as found:
        join(found, IDS[0], data(0))
        found.start(fl.Client(waits, columns=lambda config: data(1)).run, at(found.server.netloc, IDS[1]))
        found.round(2)
        assert begun.wait(SOON)
        report = found.server.statistics_of(ASKED)
        goes_on.set()
        assert str(report.failures[IDS[1]]) == "it still does another task"


def test_statistics_of_a_server_that_is_closed() -> None:
    with Federation(min_clients=1) as found:
        found.server.close()
        with pytest.raises(netq.Closed):
            found.server.statistics_of(ASKED)


def test_an_interrupt_leaves_no_client_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    with Federation(min_clients=1) as found:
        join(found, IDS[0], data(0))
        with monkeypatch.context() as patch:
            patch.setattr(Members, "answer", interrupted)
            with pytest.raises(KeyboardInterrupt):
                found.server.statistics_of(ASKED)
        assert len(found.server.statistics_of(ASKED).columns) == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (({},), r"Server\.statistics_of: columns: {}; expected columns by name"),
        (({"age": 3},), r"Server\.statistics_of: columns: 'age': 3; expected an fl\.Column"),
        ((ASKED, 0), r"Server\.statistics_of: min_count: 0; expected a whole number of 1 or more"),
    ],
)
def test_wrong_arguments(arguments: Any, error: str) -> None:
    with Federation() as found, pytest.raises(InvalidOption, match=error):
        found.server.statistics_of(*arguments)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: gives(None, min_count=0), "Client.min_count: 0; expected a whole number of 1 or more"),
        (lambda: fl.Client(adds(1), columns=3), "Client.columns: 3; expected a function of a config"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_of_a_client(make: Callable[[], Any], error: str) -> None:
    with pytest.raises(InvalidOption, match=error):
        make()


def test_a_relay_says_that_it_gives_none() -> None:
    with Tree([[1, 2]], lambda number: adds(1)) as tree:
        report = tree.server.statistics_of(ASKED)
        assert [str(failure) for failure in report.failures.values()] == [
            "a relay gives no statistics of its clients' data; connect them to the server itself"
        ]
        assert len(tree.rounds(1)) == 1


def test_a_client_logs_what_it_gives(log: LogRecorder) -> None:
    asked([{"columns": {"age": np.full(99, 50.0), "weight": np.full(3, 50.0)}}])
    assert log.having("the server gets statistics of age")
    assert log.having("column weight is withheld: it has fewer than 10 values from 30 to 150")
