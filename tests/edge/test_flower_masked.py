"""`edge run --flower` under secure aggregation: the agent has the keys, and its child runs the app as always."""

from __future__ import annotations

import importlib
import json
import signal
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
import netq
from tests.edge.flower_devices import SOON, Device
from tests.fl.flower.author import TRAINS, Author

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # click's, of what typer does
    flwr: Any = pytest.importorskip("flwr.app", reason="no flwr here: pip install 'flwr>=1.39,<2'")
    flower = importlib.import_module("fl.flower")

APP = """
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()


    @app.train()
    def train(message, context):
        count = context.state["count"]["n"] + 1 if "count" in context.state else 1
        context.state["count"] = MetricRecord({"n": count})
        weights = message.content["arrays"]["w"].numpy() + context.node_config["step"]
        metrics = MetricRecord({"num-examples": 1, "count": count, "age": 40})
        content = RecordDict({"arrays": ArrayRecord({"w": Array(weights)}), "metrics": metrics})
        if context.node_config["step"] > 10:
            content["more"] = ArrayRecord({"w": Array(weights)})
        return Message(content, reply_to=message)
"""
REQUIRED = "[secure]\nrequired = true\n"
POLICY = (
    '[policy]\ntensors = ["arrays.w"]\nmetrics = ["metrics.num-examples", "metrics.count"]\naudit = "audit.jsonl"\n'
)
SECURE = fl.SecureAggregation(metrics=("count", "age"), clip=1000.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "farm_app.py").write_text(textwrap.dedent(APP))
    return tmp_path


@contextmanager
def grid_of(**settings: Any) -> Iterator[Any]:
    """A grid that does not wait for its devices at the end, which are killed."""
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    with flower.Grid(options, grace=1.0, **settings) as grid:
        yield grid
        grid.close(0.0)


def train(grid: Any) -> dict[int, Any]:
    content = flwr.RecordDict({"arrays": flower.arrays({"w": np.zeros(3)})})
    messages = [flwr.Message(content, node, "train") for node in grid.get_node_ids()]
    return {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(messages, timeout=SOON)}


def check_mean(reply: Any, mean: float, **metrics: Any) -> None:
    assert not reply.has_error(), reply.error
    assert reply.content["arrays"]["w"].numpy() == pytest.approx([mean] * 3, abs=1e-5)
    assert dict(reply.content["metrics"]) == {"num-examples": 1.0, **metrics}


@pytest.mark.slow
def test_devices_answer_under_masks_and_go_on_when_they_are_started_again(folder: Path) -> None:
    with grid_of(secure=SECURE, max_examples="equal") as grid, ExitStack() as stack:
        more = [f'state = "state{number}"\n{REQUIRED}' for number in range(4)]
        more[1] += POLICY
        port = grid.netloc.port
        devices = [Device(folder, port, each, step=float(step)) for step, each in enumerate(more)]
        processes = [stack.enter_context(device.running()) for device in devices]
        grid.wait(4, SOON)
        replies = train(grid)
        assert set(replies) == {device.node for device in devices}
        for reply in replies.values():
            check_mean(reply, 1.5, count=pytest.approx(1.0), age=pytest.approx(40.0))
        processes[0].send_signal(signal.SIGKILL)
        processes[0].wait(SOON)
        while devices[0].node in grid.get_node_ids():
            grid.pull_messages(["unknown"])
        stack.enter_context(devices[0].running())
        grid.wait(4, SOON)
        for reply in train(grid).values():  # the first device has new keys, and the state of its app
            check_mean(reply, 1.5, count=pytest.approx(2.0), age=pytest.approx(40.0))
    audit = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    assert ["metrics.age" in line["withheld"] for line in audit] == [True, True]


@pytest.mark.slow
def test_a_reply_that_masks_do_not_cover_stays_at_the_device(folder: Path) -> None:
    with grid_of(secure=SECURE, max_examples="equal") as grid, ExitStack() as stack:
        devices = [Device(folder, grid.netloc.port, REQUIRED, step=step) for step in (1.0, 2.0, 3.0, 4.0, 11.0)]
        for device in devices:
            stack.enter_context(device.running())
        grid.wait(5, SOON)
        replies = train(grid)
        error = replies.pop(devices[-1].node).error
        why = "a message has 2 records of type ArrayRecord; expected one under masks"
        assert error.reason.endswith(f": it cannot be put under masks, or encrypted: {why}")
        for reply in replies.values():
            check_mean(reply, 2.5, count=pytest.approx(1.0), age=pytest.approx(40.0))


@pytest.mark.slow
def test_devices_get_their_app_and_run_it_under_masks(folder: Path) -> None:
    author = Author(folder)
    app = f'[app]\nfolder = "apps{{}}"\nsigner = "{author.files.certificate}"\n{REQUIRED}'
    settings = {"secure": fl.SecureAggregation(metrics=("loss",)), "max_examples": "equal"}
    with grid_of(delivery=author.signed(7, module=TRAINS), **settings) as grid, ExitStack() as stack:
        for number in range(3):
            device = Device(folder, grid.netloc.port, app.format(number), app=None)
            (folder / f"apps{number}").mkdir()
            stack.enter_context(device.running())
        grid.wait(3, SOON)
        for reply in train(grid).values():
            check_mean(reply, 0.0, loss=pytest.approx(7.0))


@pytest.mark.slow
def test_a_device_that_wants_masks_runs_no_app_without(folder: Path) -> None:
    with grid_of() as grid, Device(folder, grid.netloc.port, REQUIRED, step=1.0).running():
        grid.wait(1, SOON)
        (reply,) = train(grid).values()
        assert reply.error.reason == "this client answers under secure aggregation only, and the server does not use it"
