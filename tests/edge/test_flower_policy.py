"""The policy of a device with a Flower app: what the app may not send, and approval of a delivered app."""

from __future__ import annotations

import importlib
import json
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netq
from edge.audit import verify
from fl.flower.envelope import RAISED, Failure
from tests.edge.flower_devices import SOON, Device, edge
from tests.edge.test_flower_restart import RUN, Server
from tests.fl.flower.author import Author

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # click's, of what typer does
    flwr: Any = pytest.importorskip("flwr.app", reason="no flwr here: pip install 'flwr>=1.39,<2'")
    flower, messages, edge_flower = (
        importlib.import_module(name) for name in ("fl.flower", "fl.flower.messages", "edge.flower")
    )

APP = """
    from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    import numpy as np

    app = ClientApp()


    @app.train()
    def train(message, context):
        secret = np.arange(3, dtype=np.float32) + 40
        arrays = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy() + np.float32(1))})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 7, "loss": 0.5})})
        match context.node_config["how"]:
            case "array":
                arrays["body"] = Array(secret)
            case "record":
                content["more"] = ArrayRecord({"w": Array(secret)})
            case "list":
                content["metrics"]["loss"] = secret.tolist()
            case "config":
                content["config"] = ConfigRecord({"x": secret.tobytes()})
            case "error":
                return Message(Error(77, "the secret is 42"), reply_to=message)
            case "raise":
                raise OSError("the secret is 42")
            case "numbers":
                content["more"] = MetricRecord({f"x{each}": float(each) for each in secret})
                content["secret is 42"] = ConfigRecord({})
        return Message(content, reply_to=message)
"""
ONLY = '[policy]\ntensors = ["arrays.w"]\nmetrics = ["metrics.*"]\naudit = "audit.jsonl"\n'
FAILED = "the training has failed; its reason stays in the log of the device, as the device's policy says"
WHAT = "what the task does not have (see policy.tensors): train without, or ask its owner"
REFUSED = f"the policy of this device withholds {WHAT}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "farm_app.py").write_text(textwrap.dedent(APP))
    found = Server()
    yield found
    found.queue.close(0)


def training(batch: int, app: str = "") -> Any:
    content = flwr.RecordDict({"arrays": flower.arrays({"w": np.zeros(3, np.float32)})})
    return messages.Ask(batch, RUN, {}, "train", "", 0.0, 60.0, app, content)


def answered(server: Server, folder: Path, how: str, policy: str = ONLY) -> Any:
    with Device(folder, server.queue.netloc.port, policy, how=how).running():
        server.connected()
        return server.send(training(1))


def audited(folder: Path) -> list[dict[str, Any]]:
    assert verify(folder / "audit.jsonl")[0]
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "told", "names"),
    [
        ("array", REFUSED, ["arrays.body"]),
        ("record", REFUSED, ["more.w"]),
        ("list", REFUSED, ["metrics.loss"]),
        ("config", REFUSED, ["config.x"]),
        ("error", FAILED, None),
        ("raise", FAILED, None),
    ],
)
def test_what_may_not_leave_is_withheld(
    server: Server, tmp_path: Path, how: str, told: str, names: list[str] | None
) -> None:
    assert answered(server, tmp_path, how) == Failure(1, told, RAISED)
    (line,) = audited(tmp_path)
    assert line.get("names") == names


@pytest.mark.slow
def test_numbers_that_may_not_leave_are_left_out_and_the_grid_is_told(server: Server, tmp_path: Path) -> None:
    reply = answered(server, tmp_path, "numbers")
    assert {name: {*record} for name, record in reply.content.items()} == {
        "arrays": {"w"},
        "metrics": {"num-examples", "loss"},
    }
    assert reply.usage == {"policy.withheld": 1.0}
    assert {"more.x40.0", "usage.cpu_seconds"} <= {*audited(tmp_path)[0]["withheld"]}


@pytest.mark.slow
def test_noise_is_added_once_and_sent_again_after_a_kill(server: Server, tmp_path: Path) -> None:
    policy = 'state = "state"\n[policy]\nclip = 1.0\nnoise_multiplier = 1.0\n'
    device, replies = Device(tmp_path, server.queue.netloc.port, policy, how=""), []
    for _ in range(2):
        with device.running():
            server.connected()
            replies.append(server.send(training(1)))
    first, again = (reply.content["arrays"]["w"].numpy() for reply in replies)
    assert first.tobytes() == again.tobytes()
    assert not np.array_equal(first, [1, 1, 1])
    assert {**replies[0].content["metrics"]} == {"num-examples": 1}
    assert json.loads((tmp_path / "state/budget.json").read_text()) == [[0.5, 1.0, False, 1]]


@pytest.mark.slow
def test_a_delivered_app_waits_for_approval(tmp_path: Path) -> None:
    author = Author(tmp_path)
    app = author.signed(1, value=10)
    table = (
        f'state = "state"\n[policy]\napprove = true\n[app]\nfolder = "apps"\nsigner = "{author.files.certificate}"\n'
    )
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    with flower.Grid(options, delivery=app) as grid:
        device = Device(tmp_path, grid.netloc.port, table, app=None)

        def ask() -> Any:
            (reply,) = grid.send_and_receive([flwr.Message(flwr.RecordDict(), device.node, "query")])
            return reply

        with device.running():
            grid.wait(1, SOON)
            error = ask().error
            done = edge("approve", device.path.name, app.digest[:16], folder=tmp_path)
            assert (done.returncode, done.stdout.startswith(f"approved  {app.digest[:16]}  the app {app.version}")) == (
                0,
                True,
            )
            assert ask().content["it"]["value"] == 11
        grid.close(0.0)
    assert error.code == RAISED
    assert error.reason.startswith(f"waits for the approval of the app {app.version} with 4 files, in ")
    assert error.reason.endswith(f"on the device: edge approve CLIENT.toml {app.digest[:16]}")


def test_approval_is_for_delivered_apps(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text('[server]\nhost = "a"\nport = 1\n[client]\nstate = "s"\n[policy]\napprove = true\n')
    with pytest.raises(netq.InvalidOption) as caught:
        edge_flower.load(path, "farm_app:app")
    assert str(caught.value).startswith(f"{path}: policy.approve: is for apps that the server delivers, and --flower ")
