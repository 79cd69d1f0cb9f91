"""A node: the app's context and state, unmodified apps, and reconnection."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod

import fl.flower
import netq
from netq.testing.log import LogRecorder
from tests.fl.flower import apps
from tests.fl.flower.federation import QUICK, SOON, Federation, at, error_of
from tests.servers import ports


def calls(reply: Message) -> int:
    count = reply.content["metrics"]["calls"]
    assert isinstance(count, int)
    return count


def test_an_app_gets_its_config_and_that_of_the_run() -> None:
    found: list[Context] = []

    def client(message: Message, context: Context) -> Message:
        found.append(context)
        return Message(RecordDict(), reply_to=message)

    with Federation(run_config={"lr": 0.5, "name": "first"}) as federation:
        id = federation.join(client, {"partition-id": 3})
        federation.query(id)
    (context,) = found
    assert context.node_config == {"partition-id": 3}
    assert context.run_config == {"lr": 0.5, "name": "first"}
    assert context.state == RecordDict()


def test_state_is_kept_but_not_that_of_a_failure() -> None:
    with Federation() as federation:
        id = federation.join(apps.app)
        assert [calls(federation.query(id)[id]) for _ in range(2)] == [1, 2]
        failed = error_of(federation.query(id, group_id="fail")[id])
        assert failed.reason == "<class 'OSError'>:<'the sensor does not answer'>"
        assert calls(federation.query(id)[id]) == 3


def test_a_replaced_state_is_kept() -> None:
    def client(message: Message, context: Context) -> Message:
        reply = Message(context.state, reply_to=message)
        context.state = RecordDict({"m": MetricRecord({"n": len(context.state) + 1})})
        return reply

    with Federation() as federation:
        id = federation.join(client)
        assert [list(federation.query(id)[id].content) for _ in range(2)] == [[], ["m"]]


def test_a_node_waits_for_a_grid_and_starts_anew_with_the_next() -> None:
    netloc, id = ports.free(), uuid.uuid4()
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(fl.flower.Node(apps.app, {"partition-id": 0}).run, at(netloc, id))
        runs = []
        for last in (False, True):
            grid = fl.flower.Grid(at(netloc))
            grid.wait(1, SOON)
            runs.append(grid.run.run_id)
            message = Message(RecordDict(), fl.flower.node_id(id), "query")
            (reply,) = grid.send_and_receive([message])
            assert calls(reply) == 1
            grid.close(SOON if last else 0.0)  # at first without a goodbye
        end.result(SOON)
    assert runs[0] != runs[1]


def twice(message: Message, context: Context) -> Message:
    """Trains in place, then reads the sent arrays again."""
    sent: Any = message.content["arrays"]
    model = sent["w"].numpy()
    model += 1
    return Message(RecordDict({"arrays": ArrayRecord([model - sent["w"].numpy()])}), reply_to=message)


@pytest.mark.parametrize(("copy", "change"), [(True, 1), (False, 0)])
def test_training_in_place_leaves_the_sent_arrays_unchanged(copy: bool, change: int) -> None:
    record = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(2))})})
    with Federation() as federation:
        id = federation.join(twice, copy=copy)
        found: Any = federation.query(id, content=record)[id].content["arrays"]
    assert found["0"].numpy().tolist() == [change] * 2


def test_a_flower_mod_sees_the_sent_arrays() -> None:
    """Compute the difference of the sent and the returned arrays, after training in place."""
    clipped = ClientApp(mods=[fixedclipping_mod])

    @clipped.query()
    def train(message: Message, context: Context) -> Message:
        record = message.content["arrays"]
        assert isinstance(record, ArrayRecord)
        model = record.to_numpy_ndarrays()
        model[0] += 3
        return Message(RecordDict({"arrays": ArrayRecord(model)}), reply_to=message)

    config = ConfigRecord({"clipping_norm": 1.0})
    record = RecordDict({"arrays": ArrayRecord([np.zeros(1)]), "config": config})
    with Federation() as federation:
        id = federation.join(clipped)
        found: Any = federation.query(id, content=record)[id].content["arrays"]
    assert found["0"].numpy().tolist() == [1]


def test_an_app_may_reuse_the_memory_of_its_reply() -> None:
    model = np.zeros(200_000)

    def client(message: Message, context: Context) -> Message:
        model[...] += 1
        return Message(RecordDict({"arrays": fl.flower.arrays({"w": model})}), reply_to=message)

    with Federation() as federation:
        id = federation.join(client)
        messages = [Message(RecordDict(), fl.flower.node_id(id), "query", group_id=str(n)) for n in range(10)]
        replies = {int(reply.metadata.group_id): reply for reply in federation.grid.send_and_receive(messages)}
        for number in range(10):
            found: Any = replies[number].content["arrays"]
            assert set(found["w"].numpy()) == {number + 1}  # a node puts one, then changes it for the next


@pytest.mark.parametrize(
    ("group", "records", "line"),
    [
        ("", {}, "query"),
        ("3", {}, "query 3"),  # the form of legacy strategies
        ("", {"config": ConfigRecord({"server-round": 5, "lr": 0.1})}, "query 5"),  # the form of FedAvg
        ("", {"config": ConfigRecord({"lr": 0.1})}, "query"),
        ("3\nall is well", {}, "query 3\\nall is well"),
    ],
)
def test_the_log_has_the_round_of_a_message(group: str, records: dict[str, Any], line: str) -> None:
    with Federation() as federation, LogRecorder() as log:
        federation.query(federation.join(apps.app), group_id=group, content=RecordDict(records))
        assert log.having("query") == [line]


def test_an_invalid_config_is_refused() -> None:
    with pytest.raises(netq.Unreadable, match="the config's 'partition'"):
        fl.flower.Node(apps.app, {"partition": None})  # type: ignore[dict-item]


@pytest.mark.slow
def test_another_grid_that_closes_does_not_end_a_node(log: LogRecorder) -> None:
    options = at(ports.free())
    options = replace(options, connection=replace(QUICK, takeover_grace=0.1))
    with ThreadPoolExecutor(1) as pool:
        first = fl.flower.Grid(options)
        end = pool.submit(fl.flower.Node(apps.app, {"partition-id": 0}).run, replace(options, id=uuid.uuid4()))
        first.wait(1, SOON)
        first.close(0.0)
        second = fl.flower.Grid(options := replace(options, id=uuid.uuid4()))
        second.wait(1, SOON)
        second.close(SOON)
        log.wait("ends another run than this client's")
        assert not end.done()
        with fl.flower.Grid(replace(options, id=uuid.uuid4())) as third:
            (node,) = third.wait(1, SOON)
            (reply,) = third.send_and_receive([Message(RecordDict(), node, "query")])
            assert calls(reply) == 1
        end.result(SOON)
