"""A grid under secure aggregation: unmodified apps and strategies get the mean, and nothing unmasked leaves a node."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import EvaluateIns, Parameters
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.serverapp import strategy as strategies

import fl
import fl.flower
import netq
from fl.aggregation.mean import WeightedMean
from fl.flower import masked_rounds
from fl.flower._compat import ErrorCode
from fl.flower.masked import task_of, update_of
from fl.flower.messages import node_id
from netq.security import certificates
from netq.testing.log import LogRecorder
from tests.fl.flower.apps import ROUNDS, app, server
from tests.fl.flower.author import TRAINS, Author
from tests.fl.flower.federation import SHORT, SOON, Federation, at, error_of

SECURE = fl.SecureAggregation(metrics=("loss", "train_loss"), step=SOON)
MODEL: dict[str, Any] = {
    "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    "bn.running_mean": np.zeros(3),
    "bn.num_batches_tracked": np.array(5, np.int64),
}


def content(model: Mapping[str, Any] = MODEL, **config: Any) -> RecordDict:
    return RecordDict({"arrays": fl.flower.arrays(model), "config": ConfigRecord(config)})


def trained(number: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    floats: dict[str, Any] = {name: random.normal(size=MODEL[name].shape) for name in ("w", "bn.running_mean")}
    return {**floats, "w": floats["w"].astype(np.float32), "bn.num_batches_tracked": np.array(5 + number, np.int64)}


def tensor(name: str, number: int) -> Any:
    return trained(number)[name]


def examples(number: int) -> int:
    return 10 * (number + 1)


def record(number: int, **metrics: Any) -> RecordDict:
    found = MetricRecord({"num-examples": examples(number), "loss": float(number), "age": 40 + number, **metrics})
    return RecordDict({"arrays": fl.flower.arrays(trained(number)), "metrics": found})


def client(message: Message, context: Context) -> Message:
    found = record(int(context.node_config["partition-id"]))
    if message.metadata.message_type == "evaluate":
        del found["arrays"]
    return Message(found, reply_to=message)


@contextmanager
def federation(
    clients: Sequence[Any] = (client,) * 4, max_examples: Any = 100, secure: fl.SecureAggregation = SECURE
) -> Iterator[Federation]:
    with Federation(secure=secure, max_examples=max_examples) as found:
        for number, each in enumerate(clients):
            found.join(each, {"partition-id": number})
        yield found


def ask(grid: fl.flower.Grid, kind: str = "train", timeout: float | None = SOON, **config: Any) -> list[Message]:
    sent = content(**config)
    return list(grid.send_and_receive([Message(sent, node, kind) for node in grid.get_node_ids()], timeout=timeout))


def mean(values: Callable[[int], Any], numbers: Sequence[int], weight: Callable[[int], int] = examples) -> Any:
    total: Any = sum(weight(number) * np.asarray(values(number), np.float64) for number in numbers)
    return total / sum(map(weight, numbers))


def check_mean(reply: Message, numbers: Sequence[int], weight: Callable[[int], int] = examples) -> None:
    arrays, metrics = reply.content["arrays"], reply.content["metrics"]
    assert isinstance(arrays, ArrayRecord)
    for name in ("w", "bn.running_mean"):
        assert arrays[name].numpy() == pytest.approx(mean(partial(tensor, name), numbers, weight), abs=2e-4)
        assert arrays[name].dtype == str(MODEL[name].dtype)
    batches = mean(lambda n: 5 + n, numbers, weight)
    assert arrays["bn.num_batches_tracked"].numpy() == np.rint(batches)
    loss = pytest.approx(float(mean(float, numbers, weight)), abs=1e-6)
    assert dict(metrics) == {"num-examples": sum(map(weight, numbers)) / len(numbers), "loss": loss}


@pytest.mark.parametrize(
    ("max_examples", "weight"),
    [(100, examples), ("equal", lambda _: 1), (20, lambda number: min(20, examples(number)))],
)
def test_each_node_in_the_sum_gets_the_mean(max_examples: Any, weight: Callable[[int], int]) -> None:
    with federation(max_examples=max_examples) as found:
        replies = ask(found.grid)
        assert {reply.metadata.src_node_id for reply in replies} == set(found.grid.get_node_ids())
        for reply in replies:
            check_mean(reply, range(4), weight)
        assert "age" not in replies[0].content["metrics"]  # no metric leaves a node but those that are named


def test_a_metric_that_is_a_list_stays_at_the_node() -> None:
    def lists(message: Message, context: Context) -> Message:
        return Message(record(int(context.node_config["partition-id"]), per_class=[0.5, 1.0]), reply_to=message)

    with federation([lists] * 4) as found:
        for reply in ask(found.grid):
            check_mean(reply, range(4))


def test_evaluation_is_summed_too() -> None:
    with federation() as found:
        for reply in ask(found.grid, "evaluate"):
            assert list(reply.content) == ["metrics"]
            assert dict(reply.content["metrics"]) == {"num-examples": 25.0, "loss": pytest.approx(2.0, abs=1e-6)}


@pytest.mark.parametrize(
    "make",
    [
        lambda: strategies.FedAvg(),
        lambda: strategies.FedProx(proximal_mu=0.1),
        lambda: strategies.FedAvgM(server_momentum=0.9),
        lambda: strategies.FedAdam(eta=0.1),
        lambda: fl.flower.FedAvg(),
    ],
    ids=["FedAvg", "FedProx", "FedAvgM", "FedAdam", "kernel"],
)
def test_a_strategy_comes_to_the_same_result(make: Callable[[], strategies.Strategy]) -> None:
    results = []
    kinds: tuple[dict[str, Any], ...] = ({}, {"secure": replace(SECURE, clip=1000.0), "max_examples": 50})
    for settings in kinds:
        made, result = server(make(), timeout=SOON)
        with Federation(**settings) as found:
            found.join_all(app, 4)
            found.run(made)
        results += result
    plain, masked = results
    for name in ("weights", "bias"):
        assert masked.arrays[name].numpy() == pytest.approx(plain.arrays[name].numpy(), abs=1e-3)
    for each in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        of_plain, of_masked = getattr(plain, each), getattr(masked, each)
        assert of_masked == {n: {k: pytest.approx(v, rel=1e-3) for k, v in m.items()} for n, m in of_plain.items()}
        assert list(of_masked) == list(range(1, ROUNDS + 1))


def test_integers_that_flower_makes_floats_of_stay_integers() -> None:
    """An app that loads 4.9999999 into torch's counter of batches would have 4, and be one behind in each round."""
    counted = []

    def counts(message: Message, context: Context) -> Message:
        arrays: Any = message.content["arrays"]
        counted.append(arrays["bn.num_batches_tracked"].numpy())
        return client(message, context)

    with federation((counts,) * 4) as found:
        ask(found.grid)
        shared = content({**MODEL, "bn.num_batches_tracked": np.array(5 - 1e-7)})  # of FedAvg, after a round
        messages = [Message(shared, node, "train") for node in found.grid.get_node_ids()]
        for reply in found.grid.send_and_receive(messages, timeout=SOON):
            array = reply.content["arrays"]["bn.num_batches_tracked"].numpy()
            assert (array.dtype, array) == (np.int64, 7)
    assert [(each.dtype, each) for each in counted] == [(np.int64, 5)] * 8


def fails(message: Message, context: Context) -> Message:
    raise OSError("the sensor does not answer")


def test_a_sum_does_without_a_node_that_fails() -> None:
    with federation([client, client, client, client, fails]) as found:
        replies = ask(found.grid)
        good = [reply for reply in replies if not reply.has_error()]
        (bad,) = (reply for reply in replies if reply.has_error())
        assert len(good) == 4
        check_mean(good[0], range(4))
        assert "the sensor does not answer" in error_of(bad).reason


def test_a_sum_does_without_a_node_that_is_late_and_the_next_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, int]] = []
    asks = masked_rounds.Nodes.ask

    def spy(self: Any, task: Any, members: Any, limit: float, **more: Any) -> None:
        steps.append((task.secure["step"], len(members)))
        asks(self, task, members, limit, **more)

    monkeypatch.setattr(masked_rounds.Nodes, "ask", spy)
    begun, is_open = threading.Event(), threading.Event()

    def slow(message: Message, context: Context) -> Message:
        begun.set()
        assert is_open.wait(SOON)
        return client(message, context)

    with federation([client, client, client, client, slow]) as found:
        replies = ask(found.grid, timeout=10 * SHORT)
        assert begun.wait(SOON)
        assert sorted(error_of(reply).reason.split(": ")[-1] for reply in replies if reply.has_error()) == [
            "no reply in time"
        ]
        check_mean(next(reply for reply in replies if not reply.has_error()), range(4))
        assert steps[-2:] == [
            ("agree", 4),
            ("open", 4),
        ]  # one that does a task would not answer in time
        is_open.set()
        replies = ask(found.grid)
        assert not any(reply.has_error() for reply in replies)
        check_mean(replies[0], range(5))


def test_nodes_that_join_are_in_the_next_sum() -> None:
    with federation() as found:
        check_mean(ask(found.grid)[0], range(4))
        found.join(client, {"partition-id": 4})
        check_mean(ask(found.grid)[0], range(5))


def test_too_few_nodes_have_no_sum() -> None:
    with federation([client, client]) as found:
        for reply in ask(found.grid):
            assert "2 clients can take part in secure aggregation; expected 3 at least" in error_of(reply).reason


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda found: found.update(log=ConfigRecord({"name": "Ann"})), "it has the ConfigRecord 'log'"),
        (lambda found: found.update(more=MetricRecord({"x": 1.0})), "a message has 2 records of type MetricRecord"),
        (lambda found: found.pop("arrays"), "a message has 0 records of type ArrayRecord; expected one under masks"),
        (
            lambda found: found["metrics"].pop("num-examples"),
            "the metric 'num-examples' of the reply is None; ",
        ),
        (lambda found: found["metrics"].update({"num-examples": 1.5}), "the metric 'num-examples' of the reply is 1.5"),
        (lambda found: found["metrics"].update({"num-examples": 0}), "the metric 'num-examples' of the reply is 0"),
        (lambda found: found["arrays"].pop("w"), "'w' is missing; expected float32 of shape (3, 4)"),
        (lambda found: found["arrays"].update(w=Array(np.zeros(3, np.float32))), "'w' is float32 of shape (3,)"),
        (lambda found: found["arrays"].update(v=Array(np.zeros(3, np.float32))), "'v' is unexpected"),
        (lambda found: found["arrays"].update(w=Array(np.full((3, 4), np.nan, np.float32))), "'w' holds NaN"),
    ],
)
def test_a_reply_that_masks_do_not_cover_stays_at_the_node(change: Callable[[Any], object], why: str) -> None:
    def wrong(message: Message, context: Context) -> Message:
        found = record(3)
        change(found)
        return Message(found, reply_to=message)

    with federation([client, client, client, client, wrong]) as found:
        (bad,) = (reply for reply in ask(found.grid) if reply.has_error())
        assert why.replace("it has", "the reply has") in error_of(bad).reason


@pytest.mark.parametrize("records", [[1], [["a", "metrics", [1]]], [["a", "metrics", [[["x"], 1]]]], [["a", "config"]]])
def test_a_reply_of_no_records_is_refused(records: list[Any]) -> None:
    with pytest.raises(fl.InvalidUpdate, match="the reply is not valid: "):
        update_of({"type": "Reply", "content": records}, {})


Messages = Callable[[fl.flower.Grid], list[Message]]


def other_contents(grid: fl.flower.Grid) -> list[Message]:
    return [Message(content(), node, "train") for node in grid.get_node_ids()]


def twice(grid: fl.flower.Grid) -> list[Message]:
    sent = content()
    return [Message(sent, node, "train") for node in grid.get_node_ids() * 2]


def of_kind(kind: str, sent: RecordDict | None = None) -> Messages:
    sent = content() if sent is None else sent
    return lambda grid: [Message(sent, node, kind) for node in grid.get_node_ids()]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (other_contents, "Grid.secure: train: 4 messages have not all one content, each to another node"),
        (twice, "Grid.secure: train: 8 messages have not all one content, each to another node"),
        (of_kind("query"), "Grid.secure: the type of a message: str 'query'; expected train or evaluate"),
        (of_kind("train", RecordDict()), "Grid.secure: a message has 0 records of type ArrayRecord; expected one"),
    ],
)
def test_messages_that_masks_do_not_fit_are_refused(
    messages: Callable[[fl.flower.Grid], list[Message]], why: str
) -> None:
    with federation() as found:
        with pytest.raises(netq.InvalidOption) as error:
            found.grid.send_and_receive(messages(found.grid))
        assert str(error.value).startswith(why)
        with pytest.raises(netq.InvalidOption, match=r"Grid\.secure: push_messages: replies come one by one; expected"):
            found.grid.push_messages(messages(found.grid))
        assert found.grid.send_and_receive([]) == []


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (strategies.FedMedian(), "FedMedian looks at single replies"),
        (type("Mine", (strategies.Krum,), {})(), "Mine looks at single replies"),
        (
            strategies.DifferentialPrivacyServerSideFixedClipping(strategies.FedAvg(), 1.0, 1.0, 4),
            "DifferentialPrivacyServerSideFixedClipping looks at single replies",
        ),
        (
            fl.flower.FedAvg(kernel=lambda model: WeightedMean(model)),
            "FedAvg looks at single replies, and the server learns their mean",
        ),
        (
            strategies.DifferentialPrivacyClientSideFixedClipping(strategies.Krum(), 1.0, 1.0, 4),
            "Krum looks at single replies",
        ),
        (strategies.FedAvg(weighted_by_key="age"), "FedAvg weighs replies by 'age', and nodes weigh theirs by 'num-ex"),
    ],
)
def test_strategies_that_need_more_than_a_mean_are_refused(strategy: strategies.Strategy, why: str) -> None:
    with federation() as found, pytest.raises(netq.InvalidOption) as error:
        strategy.start(found.grid, fl.flower.arrays(MODEL), num_rounds=1)
    assert str(error.value).startswith(f"Grid.secure: train: {why}")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"secure": True, "max_examples": 1}, "Grid.secure: True; expected an object, as in fl.SecureAggregation()"),
        ({"secure": SECURE}, "Grid.max_examples: None; expected what the largest node has, or a little more"),
        ({"secure": SECURE, "max_examples": 0}, "Grid.max_examples: 0; expected what the largest node has"),
        ({"max_examples": 5}, "Grid.max_examples: 5; expected none: it is for secure aggregation"),
    ],
)
def test_wrong_options_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(netq.InvalidOption) as error:
        fl.flower.Grid(**settings)
    assert str(error.value).startswith(why)
    with pytest.raises(netq.InvalidOption, match=r"Node\.secure: 1; expected an object, as in fl\.SecurePolicy"):
        fl.flower.Node(client, secure=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [content({**MODEL, "w": MODEL["w"] + 1}), content(rate=0.2), RecordDict({"more": ConfigRecord(), **content()})],
)
def test_a_server_that_gives_nodes_different_tasks_gets_no_vector_of_them(
    monkeypatch: pytest.MonkeyPatch, other: RecordDict
) -> None:
    send = masked_rounds.Nodes.send

    def lie(self: Any, parts: Any, job: Any, limit: float) -> None:
        if job.purpose == "train":
            ((ask, (first, *others)),) = parts
            parts = [(replace(ask, content=other), [first]), (ask, others)]
        send(self, parts, job, limit)

    monkeypatch.setattr(masked_rounds.Nodes, "send", lie)
    with federation([client] * 5) as found:
        (bad,) = (reply for reply in ask(found.grid) if reply.has_error())
        assert "the task that came is not that of the round's terms" in error_of(bad).reason


def test_a_node_that_wants_masks_answers_nothing_without() -> None:
    calls: list[str] = []

    def app(message: Message, context: Context) -> Message:
        calls.append(message.metadata.message_type)
        return client(message, context)

    with Federation() as found:
        id = found.join(app, {"partition-id": 0}, secure=fl.SecurePolicy(required=True))
        for kind in ("train", "query"):
            (reply,) = found.grid.send_and_receive([Message(content(), node_id(id), kind)])
            assert error_of(reply).reason.endswith(
                "this client answers under secure aggregation only, and the server does not use it"
            )
    assert calls == []


def test_a_reply_without_masks_does_not_count() -> None:
    class Plain(fl.flower.Node):
        def _answer(self, task: Any, tasks: Any, masker: Any) -> Any:
            answer = super()._answer(task, tasks, masker)
            return answer if task.is_step else tasks.answer(task)

    with federation() as found:
        options = found.options(uuid.uuid4())
        found.start(Plain(client, {"partition-id": 4}).run, options)
        found.wait_for(options.id)
        replies = ask(found.grid)
        (bad,) = (reply for reply in replies if reply.has_error())
        assert error_of(bad).reason.endswith(": a RecordDict; expected a vector under masks")
        check_mean(next(reply for reply in replies if not reply.has_error()), range(4))
        assert found.grid._unpulled._sizes == {}  # what a round takes is not kept for the app to pull


def test_a_node_that_does_not_answer_a_step_is_left_out() -> None:
    with federation(secure=replace(SECURE, step=10 * SHORT)) as found:
        found.join_raw(lambda message: [])
        replies = ask(found.grid)
        (bad,) = (reply for reply in replies if reply.has_error())
        assert ": no answer " in error_of(bad).reason
        check_mean(next(reply for reply in replies if not reply.has_error()), range(4))


def test_a_node_that_has_lied_takes_no_part_any_more() -> None:
    with federation() as found:
        id = found.join(client, {"partition-id": 4})
        masked = found.grid._masked
        assert masked is not None
        masked._masks.liars[str(id)] = "it has dealt no shares"
        replies = ask(found.grid)
        (bad,) = (reply for reply in replies if reply.has_error())
        assert bad.metadata.src_node_id == node_id(id)
        assert error_of(bad).reason.endswith(": it has dealt no shares")
        check_mean(next(reply for reply in replies if not reply.has_error()), range(4))


def test_a_log_line_says_what_was_cut_off() -> None:
    with LogRecorder() as log, federation(secure=replace(SECURE, clip=0.1)) as found:
        ask(found.grid)
    assert log.having("train: 4 nodes, masked, ")
    assert log.having("of the changes were larger than SecureAggregation.clip allows", logging.WARNING)


def test_an_ask_that_is_no_task_is_refused() -> None:
    for wrong in ({}, {"secure": {}, "run": 1, "batch": 1, "message_type": 1, "content": []}):
        with pytest.raises(fl.InvalidUpdate, match="the message is not valid"):
            task_of(wrong)


def test_certificates_prove_the_keys_of_the_nodes(tmp_path: Path) -> None:
    own = certificates.init(tmp_path)
    issued = [certificates.issue(tmp_path, f"board-{number}") for number in range(4)]
    shown = {entry.name: entry.id for entry in certificates.show(tmp_path)}
    options = at(("127.0.0.1", 0), security=netq.SecurityOptions(own.key, own.certificate, own.authority))
    with Federation(options, secure=SECURE, max_examples=100) as found, LogRecorder() as log:
        for number, files in enumerate(issued):
            id = shown[f"board-{number}"]
            assert id is not None
            security = netq.SecurityOptions(files.key, files.certificate, files.authority)
            node = fl.flower.Node(client, {"partition-id": number}, secure=fl.SecurePolicy(certificates=True))
            found.start(node.run, replace(found.options(id), security=security))
            found.wait_for(id)
        check_mean(ask(found.grid)[0], range(4))
    assert not log.having("without certificates")


@pytest.mark.usefixtures("modules_are_forgotten")
def test_a_delivered_app_runs_under_masks(tmp_path: Path) -> None:
    author = Author(tmp_path)
    delivery = author.signed(7, module=TRAINS)
    boards = [fl.flower.ReceivedApps(tmp_path / f"apps{number}", author.files.certificate) for number in range(3)]
    with Federation(secure=SECURE, max_examples="equal", delivery=delivery) as found:
        for board in boards:
            found.join(board, secure=fl.SecurePolicy(required=True))
        for _ in range(2):
            for reply in ask(found.grid):
                assert dict(reply.content["metrics"]) == {"num-examples": 1.0, "loss": pytest.approx(7.0, abs=1e-6)}


def test_without_recovery_a_lost_reply_is_an_error_of_all_and_the_next_round_counts() -> None:
    is_broken = [True]

    def broken(message: Message, context: Context) -> Message:
        return fails(message, context) if is_broken[0] else client(message, context)

    with federation([client, client, broken], secure=replace(SECURE, recovers=False)) as found:
        reasons = [error_of(reply).reason for reply in ask(found.grid)]
        assert sum("with recovers=False a sum without cannot be opened" in reason for reason in reasons) == 2
        assert sum("the sensor does not answer" in reason for reason in reasons) == 1
        is_broken[0] = False
        check_mean(ask(found.grid)[0], range(3))


def test_a_grid_that_is_closed_in_a_round_replies_with_errors() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def waits(message: Message, context: Context) -> Message:
        begun.set()
        assert goes_on.wait(SOON)
        return client(message, context)

    def close(grid: fl.flower.Grid) -> None:
        assert begun.wait(SOON)
        grid.close(SOON)

    with federation([waits] * 3) as found, ThreadPoolExecutor() as pool:
        closed = pool.submit(close, found.grid)
        try:
            replies = ask(found.grid)
        finally:
            goes_on.set()
        assert [error_of(reply).code for reply in replies] == [ErrorCode.NODE_UNAVAILABLE] * 3
        assert error_of(replies[0]).reason.endswith(": this server is closed")
        closed.result(SOON)


def test_nodes_are_sampled_anew_in_each_round() -> None:
    made, results = server(strategies.FedAvg(fraction_train=0.5, min_train_nodes=3), timeout=SOON)
    with Federation(secure=replace(SECURE, clip=1000.0), max_examples=50) as found:
        found.join_all(app, 6)
        found.run(made)
    assert list(results[0].train_metrics_clientapp) == list(range(1, ROUNDS + 1))


def test_an_app_of_before_the_message_api_is_refused() -> None:
    with federation() as found:
        proxy = GridClientProxy(found.grid.get_node_ids()[0], found.grid, 1)
        with pytest.raises(netq.InvalidOption, match="evaluate: apps of before Flower's message API"):
            proxy.evaluate(EvaluateIns(Parameters([], ""), {}), None, 1)
