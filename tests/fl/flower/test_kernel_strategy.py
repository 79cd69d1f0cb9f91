"""A kernel of fl in a Flower strategy: which replies are folded, and the result."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

import fl.flower
import netq
from fl.aggregation.mean import WeightedMean
from fl.errors import InvalidUpdate
from fl.flower.replies import reply as reply_to
from netq.testing.log import LogRecorder
from tests.fl.flower.apps import CONTEXT, app, direct, server

ASKED = Metadata(1, "id", 1, 7, "", "", 0.0, 60.0, "train")


def model(value: float) -> dict[str, Any]:
    return {"w": np.full((2, 2), value, np.float32), "steps": np.array(round(10 * value), np.int64)}


def records(**content: Any) -> Message:
    """What node 7 answers."""
    return reply_to(ASKED, RecordDict(content))


def reply(model: dict[str, Any], number: Any = 1, **metrics: Any) -> Message:
    """A model that it has trained, made a record by Flower."""
    record = ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})
    return records(arrays=record, metrics=MetricRecord({"num-examples": number, **metrics}))


def damaged(**fields: Any) -> Message:
    """A reply with an array that is not readable by numpy, though it has a shape and dtype."""
    right = Array(model(1)["w"])
    array = Array(**{"dtype": right.dtype, "shape": right.shape, "stype": right.stype, "data": right.data, **fields})
    return records(arrays=ArrayRecord({"w": array}), metrics=MetricRecord({"num-examples": 1}))


def send(strategy: FedAvg, model: dict[str, Any], server_round: int = 1) -> None:
    """Begin a round: these arrays go to the nodes."""
    with direct(app, 2) as grid:
        messages = list(strategy.configure_train(server_round, fl.flower.arrays(model), ConfigRecord(), grid))
    assert len(messages) == 2


def failure(reason: str | None) -> Message:
    return reply_to(ASKED, Error(9, reason))


def values(record: ArrayRecord | None) -> dict[str, Any]:
    assert record is not None
    return {name: array.numpy().tolist() for name, array in record.items()}


def test_the_result_is_the_weighted_mean() -> None:
    arrays, metrics = fl.flower.FedAvg().aggregate_train(
        1, [reply(model(1), 1, loss=4.0), reply(model(2), 3, loss=8.0)]
    )
    assert values(arrays) == {"w": [[1.75, 1.75], [1.75, 1.75]], "steps": 18}  # 17.5, to the even
    assert metrics == {"loss": 7.0}


def test_dtypes_are_kept() -> None:
    strange = {
        "b": np.array([True, False]),
        "h": np.ones(2, np.float16),
        "i": np.full(3, 7, np.uint8),
        "e": np.ones((0, 2)),
    }
    arrays, _ = fl.flower.FedAvg().aggregate_train(1, [reply(strange), reply(strange)])
    stock, _ = FedAvg().aggregate_train(1, [reply(strange), reply(strange)])
    assert arrays is not None
    assert stock is not None
    assert {name: array.dtype for name, array in arrays.items()} == {
        "b": "bool", "h": "float16", "i": "uint8", "e": "float64",
    }  # fmt: skip
    assert {name: array.shape for name, array in arrays.items()} == {"b": (2,), "h": (2,), "i": (3,), "e": (0, 2)}
    assert stock["i"].dtype == "float64"


def test_each_reply_is_folded_on_arrival_and_its_arrays_freed() -> None:
    alive: list[int] = []
    arrays: list[weakref.ref[Any]] = []

    def replies() -> Iterator[Message]:
        for number in range(5):
            gc.collect()
            alive.append(sum(each() is not None for each in arrays))
            each = reply({"w": np.ones(3)}, number + 1)
            arrays.append(weakref.ref(each.content["arrays"]["w"]))
            kept.append(each)  # as a list of replies does
            yield each
            del each

    kept: list[Message] = []
    assert fl.flower.FedAvg().aggregate_train(1, replies())[0] is not None
    assert alive == [0] * 5
    assert all(list(each.content["arrays"]) == [] for each in kept)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (failure("node 7: it has gone"), "node 7: it has gone"),
        (failure(None), "error 9"),
        (records(), "it has 0 records of type ArrayRecord; expected one"),
        (records(a=ArrayRecord(), b=ArrayRecord()), "it has 2 records of type ArrayRecord; expected one"),
        (records(a=ArrayRecord(), b=ConfigRecord()), "it has 0 records of type MetricRecord; expected one"),
        (records(a=ArrayRecord(), b=MetricRecord()), "its metrics have no number 'num-examples'"),
        (reply(model(1), [1, 2]), "its metrics have no number 'num-examples'"),
        (reply(model(1), 0), "its 'num-examples' is 0; expected a finite number above 0"),
        (reply(model(1), -5), "its 'num-examples' is -5; expected a finite number above 0"),
        (reply(model(1), float("nan")), "its 'num-examples' is nan; expected a finite number above 0"),
        (damaged(stype="torch"), "'w' cannot be read: Unsupported serialization type"),
        (damaged(data=b"12345"), "'w' cannot be read: "),
        (damaged(data=b""), "'w' cannot be read: "),
        (reply({**model(1), "w": np.full((2, 2), np.nan, np.float32)}), "'w' holds NaN or infinity"),
        (reply({"w": model(1)["w"]}), "'steps' is missing"),
        (reply({**model(1), "more": np.zeros(1)}), "'more' is unexpected"),
        (reply({**model(1), "w": np.zeros((2, 3), np.float32)}), "'w' is float32 of shape (2, 3)"),
    ],
)
def test_a_reply_that_does_not_fit_is_left_out(bad: Message, reason: str) -> None:
    with LogRecorder("flwr") as log:
        arrays, metrics = fl.flower.FedAvg().aggregate_train(2, [reply(model(1)), bad, reply(model(3))])
        assert len(log.having(f"round 2: node 7 is left out: {reason}")) == 1
        assert len(log.having("aggregate_train: Received 2 results and 1 failures")) == 1
    assert values(arrays) == {"w": [[2, 2], [2, 2]], "steps": 20}
    assert metrics == {}
    assert bad.has_error() or not any(bad.content.array_records.values())  # its memory is free before the round ends


USUAL = {"loss": 2.0, "steps": [1, 2]}
ODD = [{}, {**USUAL, "more": 1}, {**USUAL, "loss": [2.0]}, {**USUAL, "steps": 1}, {**USUAL, "steps": [1, 2, 3]}]


def evaluation(number: Any = 1, **metrics: Any) -> Message:
    return records(metrics=MetricRecord({"num-examples": number, **metrics}))


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("first", [True, False])
def test_arrays_count_if_the_metrics_differ(odd: dict[str, Any], first: bool) -> None:
    replies = [reply(model(1), 1, **USUAL), reply(model(2), 1, **USUAL)]
    replies.insert(0 if first else 2, reply(model(6), 1, **odd))
    with LogRecorder("flwr") as log:
        arrays, metrics = fl.flower.FedAvg().aggregate_train(4, replies)
        assert len(log.having("round 4: the metrics of node 7 are left out: they are 'metrics' with")) == 1
        assert len(log.having("aggregate_train: Received 3 results and 0 failures")) == 1
    assert values(arrays) == {"w": [[3, 3], [3, 3]], "steps": 30}
    assert metrics == USUAL


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("first", [True, False])
def test_an_evaluation_with_other_metrics_is_left_out(odd: dict[str, Any], first: bool) -> None:
    replies = [evaluation(1, **USUAL), evaluation(3, **USUAL)]
    replies.insert(0 if first else 2, evaluation(1, **odd))
    with LogRecorder("flwr") as log:
        assert fl.flower.FedAvg().aggregate_evaluate(4, replies) == USUAL
        assert len(log.having("round 4: the metrics of node 7 are left out")) == 1


@pytest.mark.parametrize("bad", [failure("it has gone"), records(), evaluation(-4), evaluation([1]), evaluation(0)])
def test_an_evaluation_without_a_weight_is_left_out(bad: Message) -> None:
    replies = [bad, evaluation(4, loss=1.5)]
    with LogRecorder("flwr") as log:
        assert fl.flower.FedAvg().aggregate_evaluate(4, replies) == {"loss": 1.5}
        assert len(log.having("round 4: node 7 is left out: ")) == 1
        assert len(log.having("aggregate_evaluate: Received 1 results and 1 failures")) == 1
    assert fl.flower.FedAvg().aggregate_evaluate(4, [bad]) is None


def test_metrics_in_another_record_are_other_metrics() -> None:
    replies = [
        evaluation(1, loss=1.0),
        evaluation(1, loss=1.0),
        records(m=MetricRecord({"num-examples": 1, "loss": 7.0})),
    ]
    assert fl.flower.FedAvg().aggregate_evaluate(1, replies) == {"loss": 1.0}


def test_a_round_of_failures_leaves_the_model_unchanged() -> None:
    strategy = fl.flower.FedAvg()
    assert strategy.aggregate_train(1, []) == (None, None)
    assert strategy.aggregate_train(1, [failure("it has gone")]) == (None, None)
    assert values(strategy.aggregate_train(2, [reply(model(1))])[0]) == {"w": [[1, 1], [1, 1]], "steps": 10}
    assert strategy.aggregate_train(3, [failure("it has gone")]) == (None, None)


def test_an_interrupted_round_leaves_no_trace() -> None:
    def broken() -> Iterator[Message]:
        yield reply(model(100))
        raise KeyboardInterrupt

    strategy = fl.flower.FedAvg()
    with pytest.raises(KeyboardInterrupt):
        strategy.aggregate_train(1, broken())
    assert values(strategy.aggregate_train(2, [reply(model(1))])[0]) == {"w": [[1, 1], [1, 1]], "steps": 10}


def test_another_run_may_have_another_model() -> None:
    strategy = fl.flower.FedAvg()
    for sent in (model(1), {"other": np.ones(1)}):
        send(strategy, sent)
        assert values(strategy.aggregate_train(1, [reply(sent)])[0]) == values(fl.flower.arrays(sent))


def test_a_later_round_may_have_another_model() -> None:
    strategy = fl.flower.FedAvg()
    for server_round, sent in enumerate([model(1), {"other": np.ones(1)}], 1):
        send(strategy, sent, server_round)
        assert values(strategy.aggregate_train(server_round, [reply(sent)])[0]) == values(fl.flower.arrays(sent))


STRANGE = [
    ({**model(5), "w": np.ones(5, np.float32)}, "'w' is float32 of shape (5,); expected float32 of shape (2, 2)"),
    ({**model(5), "w": np.ones((2, 2))}, "'w' is float64 of shape (2, 2); expected float32 of shape (2, 2)"),
    ({"w": model(5)["w"]}, "'steps' is missing; expected int64 of shape ()"),
    ({**model(5), "more": np.ones(1)}, "'more' is unexpected; expected the model's 2 names only"),
]


@pytest.mark.parametrize(("strange", "reason"), STRANGE)
def test_a_reply_unlike_the_sent_arrays_fails_in_any_order(strange: dict[str, Any], reason: str) -> None:
    for replies in itertools.permutations([(strange, 1, {"odd": 1}), (model(1), 1, {}), (model(3), 1, {})]):
        strategy = fl.flower.FedAvg()
        send(strategy, model(0))
        with LogRecorder("flwr") as log:
            arrays, _ = strategy.aggregate_train(1, [reply(model, n, **metrics) for model, n, metrics in replies])
            assert log.having("round 1: node 7 is left out") == [f"round 1: node 7 is left out: {reason}"]
            assert len(log.having("aggregate_train: Received 2 results and 1 failures")) == 1
        assert values(arrays) == {"w": [[2, 2], [2, 2]], "steps": 20}


def test_one_matching_reply_decides_for_the_run() -> None:
    strategy = fl.flower.FedAvg()
    for server_round, sent in enumerate([model(1), STRANGE[0][0]], 1):
        send(strategy, model(0), server_round)
        found = strategy.aggregate_train(server_round, [reply(sent)])
    assert found == (None, None)


@pytest.mark.parametrize("part", [{"w": model(1)["w"]}, {"w": np.ones((2, 2)), "steps": np.ones(())}])
def test_replies_that_agree_on_other_arrays_are_folded(part: dict[str, Any]) -> None:
    strategy = fl.flower.FedAvg()
    for server_round in (1, 2):  # nodes that keep the other layers send the same layers again
        send(strategy, model(0), server_round)
        with LogRecorder("flwr") as log:
            arrays, _ = strategy.aggregate_train(server_round, [reply(part), reply(part)])
            assert len(log.having("no reply is like the arrays that were sent; those like node 7's are taken: '")) == 1
        assert values(arrays) == values(fl.flower.arrays(part))


def test_no_copy_of_the_sent_arrays_is_kept() -> None:
    strategy, sent = fl.flower.FedAvg(), model(1)
    arrays = [weakref.ref(array) for array in sent.values()]
    send(strategy, sent)
    del sent
    gc.collect()
    assert [each() for each in arrays] == [None, None]


def test_the_next_round_does_not_change_returned_arrays() -> None:
    strategy = fl.flower.FedAvg()
    first, _ = strategy.aggregate_train(1, [reply(model(1))])
    second, _ = strategy.aggregate_train(2, [reply(model(2))])
    assert values(first) == {"w": [[1, 1], [1, 1]], "steps": 10}
    assert values(second) == {"w": [[2, 2], [2, 2]], "steps": 20}


def test_options_are_passed_to_fedavg() -> None:
    strategy = fl.flower.FedAvg(fraction_train=0.5, weighted_by_key="n")
    assert isinstance(strategy, FedAvg)
    assert (strategy.fraction_train, strategy.weighted_by_key) == (0.5, "n")
    replies = [records(a=ArrayRecord([np.ones(1)]), m=MetricRecord({"n": 2.5}))]
    assert values(strategy.aggregate_train(1, replies)[0]) == {"0": [1]}


class Last:
    """A kernel: the last model is the result."""

    count = 0

    def __init__(self, like: Any) -> None:
        assert set(like) == {"w", "steps"}

    def fold(self, model: Any, weight: float) -> None:
        if weight > 100:
            raise InvalidUpdate("too heavy")
        self.model, self.count = model, self.count + 1

    def finish(self) -> Any:
        return self.model

    def reset(self) -> None:
        self.count = 0


@pytest.mark.parametrize("kernel", [5, None, WeightedMean(model(1))])
def test_a_kernel_that_cannot_be_called_is_refused(kernel: Any) -> None:
    with pytest.raises(netq.InvalidOption, match=r"FedAvg\.kernel: .*; expected what is called with a model"):
        fl.flower.FedAvg(kernel=kernel)


def test_another_kernel_can_be_given() -> None:
    strategy = fl.flower.FedAvg(kernel=Last)
    replies = [reply(model(1)), reply(model(2)), reply(model(3), 101)]
    assert values(strategy.aggregate_train(1, replies)[0]) == {"w": [[2, 2], [2, 2]], "steps": 20}


def test_a_run_gives_the_result_of_fedavg() -> None:
    results = []
    for strategy in (FedAvg(), fl.flower.FedAvg()):
        server_app, found = server(strategy)
        with direct(app, 3) as grid:
            server_app(grid, CONTEXT)
        results += found
    for name in ("weights", "bias"):
        np.testing.assert_allclose(results[0].arrays[name].numpy(), results[1].arrays[name].numpy(), rtol=1e-5)
    assert str(results[0]) != ""


class Own(fl.flower.FedAvg):
    """What users override in Flower's FedAvg: a decay, the model of each round, the metrics."""

    def __init__(self, *arguments: Any, decay: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.decay = decay
        self.models: list[dict[str, Any]] = []
        self.metrics: list[Any] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["lr"] = self.decay**server_round
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        self.models.append({name: array.numpy() for name, array in arrays.items()})
        return arrays, metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
        self.metrics.append(super().aggregate_evaluate(server_round, replies))
        return self.metrics[-1]


def test_a_subclass_overrides_what_users_override_in_flowers() -> None:
    rates: list[Any] = []

    def client(message: Message, context: Context) -> Message:
        config = next(iter(message.content.config_records.values()))
        rates.append((config["server-round"], config.get("lr")))
        return app(message, context)

    strategy = Own(1.0, fraction_evaluate=1.0, min_available_nodes=3, decay=0.5)
    server_app, results = server(strategy)
    with direct(client, 3) as grid:
        server_app(grid, CONTEXT)
    (result,) = results
    rounds = len(strategy.models)
    assert {rate for number, rate in rates if rate is not None} == {0.5**number for number in range(1, rounds + 1)}
    np.testing.assert_array_equal(strategy.models[-1]["weights"], result.arrays["weights"].numpy())
    assert len(strategy.metrics) == rounds
    assert all(metrics for metrics in strategy.metrics)


def test_its_summary_is_flowers() -> None:
    with LogRecorder("flwr") as ours:
        fl.flower.FedAvg(0.5, min_train_nodes=3).summary()
    with LogRecorder("flwr") as flowers:
        FedAvg(0.5, min_train_nodes=3).summary()
    assert ours.having("") == flowers.having("") != []
