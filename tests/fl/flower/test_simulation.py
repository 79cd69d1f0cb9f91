"""A Flower app in processes of this machine: its result is that of one process, and nothing is left of it."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import fl.flower
import netq
from fl.errors import SimulationError
from fl.simulation.arguments import Engine
from tests.fl.flower.apps import app, server
from tests.fl.flower.federation import error_of
from tests.fl.flower.test_strategies import NODES, assert_same, in_process

asked = ClientApp()


@asked.query()
def query(message: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    if message.metadata.group_id == "raise" and number == 1:
        raise OSError("the disk is full")
    if message.metadata.group_id == "die" and number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    record = MetricRecord(
        {
            "number": number,
            "of": int(context.node_config["num-partitions"]),
            "pid": os.getpid(),
            "drawn": np.random.normal(),
        }
    )
    return Message(
        RecordDict(
            {
                "metrics": record,
            }
        ),
        reply_to=message,
    )


def ask_all(group: str, replies: list[Message]) -> ServerApp:
    """A ServerApp that asks each node once."""
    made = ServerApp()

    @made.main()
    def main(grid: Any, context: Context) -> None:
        assert context.run_config == {"lr": 0.5}
        messages = [Message(RecordDict(), node, "query", group_id=group) for node in grid.get_node_ids()]
        replies.extend(grid.send_and_receive(messages))

    return made


def simulate(group: str, engine: Engine, nodes: int = 3) -> list[Message]:
    replies: list[Message] = []
    options: dict[str, Any] = {"run_config": {"lr": 0.5}, "processes": 2, "engine": engine}
    fl.flower.simulate(ask_all(group, replies), asked, nodes, **options)
    return replies


every_engine = pytest.mark.parametrize("engine", ["processes", "network"])


@every_engine
def test_the_result_is_that_of_one_process(engine: Engine) -> None:
    server_app, results = server(FedAvg())
    fl.flower.simulate(server_app, app, NODES, processes=2, engine=engine)
    assert_same(results[0], in_process(FedAvg()))


@every_engine
def test_each_node_has_its_partition_in_a_process(engine: Engine) -> None:
    metrics: list[Any] = [reply.content["metrics"] for reply in simulate("answer", engine)]
    assert sorted(each["number"] for each in metrics) == [0, 1, 2]
    assert {each["of"] for each in metrics} == {3}
    processes = {each["pid"] for each in metrics}
    assert len(processes) <= 2
    assert os.getpid() not in processes


@every_engine
def test_nodes_draw_independent_numbers_in_any_process(engine: Engine) -> None:
    replies = simulate("once", engine) + simulate("again", engine)
    drawn: list[Any] = [reply.content["metrics"]["drawn"] for reply in replies]
    assert len(set(drawn)) == 6


@every_engine
def test_app_that_raises_is_an_error_of_its_reply(engine: Engine) -> None:
    replies = simulate("raise", engine)
    (failed,) = [reply for reply in replies if reply.has_error()]
    assert error_of(failed).reason == "<class 'OSError'>:<'the disk is full'>"
    assert len(replies) == 3


def test_process_that_ends_too_soon_is_an_error() -> None:
    with pytest.raises(SimulationError, match="the process of client 1 was ended by SIGKILL"):
        simulate("die", "network")


def test_a_reader_may_turn_to_other_messages_before_the_last_reply() -> None:
    found: dict[str, list[str]] = {"one": [], "two": []}
    made, echo = ServerApp(), ClientApp()

    @echo.query()
    def query(message: Message, context: Context) -> Message:
        time.sleep(0.03 * (int(context.node_config["partition-id"]) % 4 == 3))
        return Message(RecordDict({"group": ConfigRecord({"id": message.metadata.group_id})}), reply_to=message)

    @made.main()
    def main(grid: Any, context: Context) -> None:
        content, nodes = RecordDict(), grid.get_node_ids()
        one, two = [[Message(content, each, "query", group_id=group) for each in nodes] for group in ("one", "two")]
        replies = iter(grid.send_and_receive(fl.flower.Streamed(one)))
        first = next(replies)
        found["two"] = [each.content["group"]["id"] for each in grid.send_and_receive(two)]
        found["one"] = [each.content["group"]["id"] for each in [first, *replies]]

    fl.flower.simulate(made, echo, 40, processes=2)
    assert found == {"one": ["one"] * 40, "two": ["two"] * 40}


@every_engine
def test_a_content_may_be_changed_when_it_is_pushed(engine: Engine) -> None:
    found: list[Any] = []
    made, echo = ServerApp(), ClientApp()

    @echo.query()
    def query(message: Message, context: Context) -> Message:
        return Message(message.content, reply_to=message)

    @made.main()
    def main(grid: Any, context: Context) -> None:
        content, (node, *_) = RecordDict({"config": ConfigRecord()}), grid.get_node_ids()
        for number in range(3):
            content["config"]["number"] = number
            ids = grid.push_messages([Message(content, node, "query")])
            content["config"]["number"] = -1
            while not (replies := grid.pull_messages(ids)):
                time.sleep(0.01)
            found.extend(each.content["config"]["number"] for each in replies)

    fl.flower.simulate(made, echo, 2, processes=1, engine=engine)
    assert found == [0, 1, 2]


def test_process_that_ends_costs_the_answers_of_its_virtual_nodes() -> None:
    replies = simulate("die", "processes")
    (failed,) = [reply for reply in replies if reply.has_error()]
    assert re.fullmatch(r"node \d+ \(client 1\): its process was ended by SIGKILL; .*", error_of(failed).reason)
    assert len(replies) == 3


def test_virtual_nodes_keep_their_context_and_are_pulled_in_any_order() -> None:
    found: dict[int, list[float]] = {}
    made = ServerApp()

    @made.main()
    def main(grid: Any, context: Context) -> None:
        nodes = grid.get_node_ids()
        for _ in range(3):
            ids = list(grid.push_messages([Message(RecordDict(), node, "query.count") for node in nodes]))
            assert grid.pull_messages(["none"])[0].has_error()
            for reply in [*grid.pull_messages(ids[2:]), *grid.pull_messages(ids[:2])]:
                found.setdefault(reply.metadata.src_node_id, []).append(reply.content["metrics"]["count"])
            assert all(reply.has_error() for reply in grid.pull_messages(ids))
        (absent,) = grid.send_and_receive([Message(RecordDict(), 77, "query.count")])
        assert error_of(absent).reason == "node 77: there is none"

    fl.flower.simulate(made, asked, 4, processes=2)
    assert list(found.values()) == [[1, 2, 3]] * 4


@asked.query("count")
def count(message: Message, context: Context) -> Message:
    record: Any = context.state.setdefault("seen", MetricRecord({"count": 0}))
    record["count"] += 1
    return Message(RecordDict({"metrics": record}), reply_to=message)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"nodes": 0}, "simulate.nodes: 0; expected a whole number, 1 or more"),
        ({"processes": 0}, "simulate.processes: 0; expected 1 or more, or None"),
        ({"client_app": 5}, "simulate.client_app: 5; expected a flwr.clientapp.ClientApp"),
        ({"server_app": app}, "simulate.server_app: <flwr.clientapp.client_app.ClientApp"),
    ],
)
def test_wrong_arguments_are_refused(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(netq.InvalidOption) as caught:
        fl.flower.simulate(**{"server_app": ServerApp(), "client_app": app, **settings})
    assert str(caught.value).startswith(line)
