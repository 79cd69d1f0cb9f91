"""A Flower app in processes of this machine: its result is that of one process, and nothing is left of it."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import fl.flower
import netq
from fl.errors import SimulationError
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


def simulate(group: str, nodes: int = 3) -> list[Message]:
    replies: list[Message] = []
    fl.flower.simulate(ask_all(group, replies), asked, nodes, run_config={"lr": 0.5}, processes=2)
    return replies


def test_the_result_is_that_of_one_process() -> None:
    server_app, results = server(FedAvg())
    fl.flower.simulate(server_app, app, NODES, processes=2)
    assert_same(results[0], in_process(FedAvg()))


def test_each_node_has_its_partition_in_a_process() -> None:
    metrics: list[Any] = [reply.content["metrics"] for reply in simulate("answer")]
    assert sorted(each["number"] for each in metrics) == [0, 1, 2]
    assert {each["of"] for each in metrics} == {3}
    processes = {each["pid"] for each in metrics}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_nodes_draw_independent_numbers_in_any_process() -> None:
    drawn: list[Any] = [reply.content["metrics"]["drawn"] for reply in simulate("once") + simulate("again")]
    assert len(set(drawn)) == 6


def test_app_that_raises_is_an_error_of_its_reply() -> None:
    replies = simulate("raise")
    (failed,) = [reply for reply in replies if reply.has_error()]
    assert error_of(failed).reason == "<class 'OSError'>:<'the disk is full'>"
    assert len(replies) == 3


def test_process_that_ends_too_soon_is_an_error() -> None:
    with pytest.raises(SimulationError, match="the process of client 1 was ended by SIGKILL"):
        simulate("die")


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
