"""Do Flower apps come to the same metrics under masks? python -m benchmarks.federation.flower_masked.

Three unmodified apps, each with four nodes in threads, first as they are, then under secure aggregation. Prints each
metric of each round, and how far the two are apart. Needs the environment of Flower, with torch and scikit-learn.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Result
from sklearn.datasets import load_digits
from torch import nn

import fl
import fl.flower
import netq

NODES, ROUNDS = 4, 3
SECURE = fl.SecureAggregation(metrics=("loss", "accuracy"))
DIGITS = Path(__file__).parents[2] / "examples" / "flower_app"


class App(NamedTuple):
    """An app. max_examples: its largest node has 450 examples."""

    title: str
    client: ClientApp
    model: ArrayRecord
    strategy: Callable[[], FedAvg]
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
        net, part = make(), slice(int(context.node_config["partition-id"]), None, NODES)
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


def apps() -> list[App]:
    """Return the apps."""
    folder, zeros = fl.flower.AppFolder.load(str(DIGITS)), ArrayRecord({"weights": Array(np.zeros((64, 10)))})
    config = folder.run_config({})
    return [
        App("softmax regression (examples/flower_app), FedAvg", folder.client_app(), zeros, FedAvg, config),
        App("MLP with BatchNorm, FedAvg", torch_app(mlp), ArrayRecord(mlp().state_dict()), FedAvg, {}),
        App("CNN, FedAdam", torch_app(cnn), ArrayRecord(cnn().state_dict()), lambda: FedAdam(eta=0.01), {}),
    ]


def run(app: App, **settings: Any) -> Result:
    """Run an app with nodes in threads."""
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    with fl.flower.Grid(options, run_config=app.run_config, **settings) as grid:
        at = netq.NetworkLocation("127.0.0.1", grid.netloc.port)
        threads = []
        for number in range(NODES):
            node = fl.flower.Node(app.client, {"partition-id": number, "num-partitions": NODES})
            threads.append(threading.Thread(target=node.run, args=(netq.CommunicatorOptions(netloc=at),)))
            threads[-1].start()
        grid.wait(NODES)
        result = app.strategy().start(grid, app.model, num_rounds=ROUNDS)
    for thread in threads:
        thread.join()
    return result


def main() -> int:
    """Run all apps, and print their metrics."""
    torch.set_num_threads(1)
    for app in apps():
        plain, masked = run(app), run(app, secure=SECURE, max_examples=450)
        print(f"{app.title}\n{'':>26}{'plain':>12}{'masks':>12}{'apart':>12}")
        for what in ("train", "evaluate"):
            theirs, ours = (getattr(each, f"{what}_metrics_clientapp") for each in (plain, masked))
            for number in theirs:
                for name, value in theirs[number].items():
                    other = ours[number][name]
                    print(f"{f'{what} {number}, {name}':>26}{value:12.7f}{other:12.7f}{abs(value - other):12.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
