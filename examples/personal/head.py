"""Eight clients that number the classes differently: FedAvg, and FedPer, where each keeps its own last layer."""

import numpy as np
import torch
import torch._dynamo  # the optimizers import it, which takes a second: now, and not in each process that is forked
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import fl

CLIENTS, ROUNDS = 8, 8

images, labels = load_digits(return_X_y=True)
images = torch.from_numpy((images / 16).astype(np.float32))
labels = torch.from_numpy(labels.astype(np.int64))
parts = fl.data.iid(len(labels), CLIENTS, seed=0)


def own(partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's images, and their labels in its own numbering."""
    part = torch.from_numpy(np.asarray(parts[partition]))
    numbering = torch.from_numpy(np.random.default_rng(partition).permutation(10))
    return images[part], numbering[labels[part]]


@torch.random.fork_rng(devices=[])  # training draws numbers of its own
def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()))
    net.add_module("head", nn.Linear(32, 10))
    return net


def train(model, config):
    """Train two epochs on the first half of the client's images."""
    x, y = own(config["partition"])
    x, y = x[: len(x) // 2], y[: len(y) // 2]
    net = network()
    net.load_state_dict(model, strict=False)  # without the head in the first round
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    rng = np.random.default_rng([config["partition"], config["round"]])
    for _ in range(2):
        for batch in torch.from_numpy(rng.permutation(len(x))).split(16):
            optimizer.zero_grad()
            cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    return fl.Update(fl.state(net), len(x))


@torch.no_grad()
def evaluate(model, config):
    """Return the share of right answers on the second half of the client's images."""
    x, y = own(config["partition"])
    x, y = x[len(x) // 2 :], y[len(y) // 2 :]
    net = network()
    net.load_state_dict(model, strict=False)
    return fl.Report(len(x), {"accuracy": (net(x).argmax(1) == y).float().mean().item()})


def run(roles=None):
    """Return the accuracy of the last round, and the kB of a round from the clients."""
    clients = [fl.Client(train, evaluate) for _ in range(CLIENTS)]
    result = fl.simulate(fl.state(network()), clients, ROUNDS, evaluate=True, roles=roles)
    return result.reports[-1].evaluation["accuracy"], result.reports[-1].bytes_in / 1000


if __name__ == "__main__":
    for name, roles in (("FedAvg", None), ("FedPer", {"head.*": "local"}), ("alone", {"*": "local"})):
        accuracy, size = run(roles)
        print(f"{name}: accuracy {accuracy:.3f}, {size:.0f} kB a round from {CLIENTS} clients")
