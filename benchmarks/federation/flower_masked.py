"""Do Flower apps come to the same metrics under masks? python -m benchmarks.federation.flower_masked [FOLDER …].

Unmodified apps, each first as it is, then under secure aggregation. Each node is a process, whose random generators
begin with its number. Prints the metrics of each round, and how far the two runs are apart. The apps are those in the
folders (with a pyproject.toml, as flwr new makes them), or three of this repository. Needs the environment of Flower;
the latter also scikit-learn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Result, Strategy
from sklearn.datasets import load_digits
from torch import nn

import fl
import fl.flower
import netq
from fl.flower.app_folder import parse_config

DIGITS = Path(__file__).parents[2] / "examples" / "flower_app"
NODES = 4
MOST = 450  # examples of a node at most, of the apps here


class App(NamedTuple):
    """An app. server: a function of a grid and a context."""

    client: ClientApp
    server: Callable[[Any, Context], Any]
    run_config: Mapping[str, Any]


def mlp() -> nn.Sequential:
    """Return a network with BatchNorm, whose statistics are averaged, too."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def cnn() -> nn.Sequential:
    """Return a small convolutional network."""
    torch.manual_seed(1)
    convolution = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(convolution, nn.Flatten(), nn.Linear(72, 10))


def torch_app(make: Callable[[], nn.Sequential]) -> ClientApp:
    """Return a ClientApp that trains a network on a node's part of scikit-learn's digits."""
    app, loss = ClientApp(), nn.CrossEntropyLoss()

    def begin(message: Message, context: Context) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
        arrays: Any = message.content["arrays"]
        part = slice(int(context.node_config["partition-id"]), None, int(context.node_config["num-partitions"]))
        net = make()
        net.load_state_dict(arrays.to_torch_state_dict())
        images, labels = load_digits(return_X_y=True)
        return net, torch.tensor(images[part], dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels[part])

    def metrics(net: nn.Sequential, x: torch.Tensor, y: torch.Tensor) -> MetricRecord:
        net.eval()
        with torch.no_grad():
            scores = net(x)
        right = float((scores.argmax(1) == y).float().mean())
        return MetricRecord({"num-examples": len(x), "loss": float(loss(scores, y)), "accuracy": right})

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net, x, y = begin(message, context)
        optimiser, order = torch.optim.SGD(net.parameters(), 0.1), torch.Generator().manual_seed(7)
        net.train()
        for batch in torch.split(torch.randperm(len(x), generator=order), 50):
            optimiser.zero_grad()
            loss(net(x[batch]), y[batch]).backward()
            optimiser.step()
        trained = ArrayRecord(net.state_dict())
        return Message(RecordDict({"arrays": trained, "metrics": metrics(net, x, y)}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": metrics(*begin(message, context))}), reply_to=message)

    return app


def app_of(name: str, overrides: Mapping[str, Any]) -> App:
    """Return an app by its folder, or one of this module."""
    if name not in ("mlp", "cnn"):
        folder = fl.flower.AppFolder.load(name)
        return App(folder.client_app(), folder.server_app(), folder.run_config(overrides))
    make, strategy = {"mlp": (mlp, FedAvg), "cnn": (cnn, lambda: FedAdam(eta=0.01))}[name]
    model = ArrayRecord(make().state_dict())
    return App(torch_app(make), lambda grid, context: strategy().start(grid, model, num_rounds=3), {})


def run_node(name: str, number: int, nodes: int, port: int) -> None:
    """Run a node, in a process of its own."""
    torch.set_num_threads(1)
    client = app_of(name, {}).client
    torch.manual_seed(number)
    np.random.seed(number)
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port))
    fl.flower.Node(client, {"partition-id": number, "num-partitions": nodes}).run(options)


def run(name: str, nodes: int, overrides: Mapping[str, Any], **settings: Any) -> Result:
    """Run an app. Return what its strategy's last `start` did."""
    torch.manual_seed(0)
    np.random.seed(0)
    app, results, start = app_of(name, overrides), list[Result](), Strategy.start

    def starts(*arguments: Any, **options: Any) -> Result:
        results.append(start(*arguments, **options))
        return results[-1]

    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    with ExitStack() as stack:
        stack.enter_context(patch.object(Strategy, "start", starts))
        grid = fl.flower.Grid(options, run_config=app.run_config, **settings)
        processes = [
            get_context("spawn").Process(target=run_node, args=(name, number, nodes, grid.netloc.port))
            for number in range(nodes)
        ]
        for each in processes:
            each.start()
            stack.callback(each.join)
        with grid:
            grid.wait(nodes)
            state = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=dict(app.run_config))
            app.server(grid, state)
    return results[-1]


def metrics_of(result: Result) -> dict[tuple[str, int, str], float]:
    """Return the metrics of all rounds that are numbers."""
    return {
        (what, number, name): float(value)
        for what in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
        for number, metrics in getattr(result, what).items()
        for name, value in metrics.items()
        if not isinstance(value, list)
    }


def main() -> int:
    """Run all apps, and print their metrics."""
    parser = argparse.ArgumentParser(prog="benchmarks.federation.flower_masked", description=__doc__)
    parser.add_argument("apps", nargs="*", metavar="FOLDER", default=[str(DIGITS), "mlp", "cnn"])
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--max-examples", type=int, default=MOST, help="of a node")
    parser.add_argument("--run-config", default="", help='as in "num-server-rounds=3"')
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.apps:
        overrides = parse_config("--run-config", given.run_config)
        plain = run(name, given.nodes, overrides)
        found = metrics_of(plain)
        secure = fl.SecureAggregation(metrics=tuple({each: None for what, _, each in found if "clientapp" in what}))
        masked = run(name, given.nodes, overrides, secure=secure, max_examples=given.max_examples)
        others, apart = metrics_of(masked), {}
        print(f"{Path(name).name}\n{'':>50}{'plain':>12}{'masks':>12}{'apart':>12}")
        for key, value in found.items():
            what, number, metric = key
            apart[key] = abs(value - others[key])
            print(f"{f'{what} {number}, {metric}':>50}{value:12.7f}{others[key]:12.7f}{apart[key]:12.1e}")
        arrays = [(plain.arrays[each].numpy(), masked.arrays[each].numpy()) for each in plain.arrays]
        model = max(float(np.abs(one.astype(float) - other).max()) for one, other in arrays)
        print(f"{Path(name).name}: metrics at most {max(apart.values()):.1e} apart, models {model:.1e}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
