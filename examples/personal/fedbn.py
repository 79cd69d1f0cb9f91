"""Eight clients whose images differ in contrast and sign: FedAvg, and FedBN, where each keeps its own BatchNorm."""

import numpy as np
import torch
import torch._dynamo  # the optimizers import it, which takes a second: now, and not in each process that is forked
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import fl

CLIENTS, ROUNDS = 8, 7

images, labels = load_digits(return_X_y=True)
images = torch.from_numpy((images / 16).astype(np.float32))
labels = torch.from_numpy(labels.astype(np.int64))
parts = fl.data.iid(len(labels), CLIENTS, seed=0)


def own(partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's images and labels: every second client has negatives, and each its own contrast."""
    part = torch.from_numpy(np.asarray(parts[partition]))
    sign = -1 if partition % 2 else 1
    return sign * (0.25 + partition) * images[part], labels[part]


@torch.random.fork_rng(devices=[])  # training draws numbers of its own
def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential()
    net.add_module("bn_in", nn.BatchNorm1d(64))
    net.add_module("hidden", nn.Linear(64, 64))
    net.add_module("bn_hidden", nn.BatchNorm1d(64))
    net.add_module("relu", nn.ReLU())
    net.add_module("head", nn.Linear(64, 10))
    return net


def train(model, config):
    """Train two epochs on the first four fifths of the client's images."""
    x, y = own(config["partition"])
    x, y = x[: 4 * len(x) // 5], y[: 4 * len(y) // 5]
    net = network()
    net.load_state_dict(model, strict=False)  # without local tensors in the first round
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    rng = np.random.default_rng([config["partition"], config["round"]])
    for _ in range(2):
        for batch in torch.from_numpy(rng.permutation(len(x))).split(32):
            optimizer.zero_grad()
            cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    return fl.Update(fl.state(net), len(x))


@torch.no_grad()
def evaluate(model, config):
    """Return the share of right answers on the last fifth of the client's images."""
    x, y = own(config["partition"])
    x, y = x[4 * len(x) // 5 :], y[4 * len(y) // 5 :]
    net = network()
    net.load_state_dict(model, strict=False)
    return fl.Report(len(x), {"accuracy": (net.eval()(x).argmax(1) == y).float().mean().item()})


def run(roles=None):
    """Return the accuracy of the last round, and the kB of a round from the clients."""
    clients = [fl.Client(train, evaluate) for _ in range(CLIENTS)]
    result = fl.simulate(fl.state(network()), clients, ROUNDS, evaluate=True, roles=roles)
    return result.reports[-1].evaluation["accuracy"], result.reports[-1].bytes_in / 1000


if __name__ == "__main__":
    for name, roles in (("FedAvg", None), ("FedBN", {"bn_*": "local"})):
        accuracy, size = run(roles)
        print(f"{name}: accuracy {accuracy:.3f}, {size:.0f} kB a round from {CLIENTS} clients")
