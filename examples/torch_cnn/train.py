"""Ten clients with different labels train a small CNN in torch; the server runs Adam on the mean of their updates."""

import numpy as np
import torch
import torch._dynamo  # the optimizers import it, which takes a second: now, and not in each process that is forked
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import fl

CLIENTS, ROUNDS = 10, 15

images, labels = load_digits(return_X_y=True)  # 1797 images of 8 x 8 pixels
images = torch.from_numpy((images / 16).astype(np.float32)).reshape(-1, 1, 8, 8)
labels = torch.from_numpy(labels.astype(np.int64))
order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
test, training = order[:359], order[359:]
parts = [training[part] for part in fl.data.dirichlet(labels[training].numpy(), CLIENTS, alpha=0.3, seed=0)]


@torch.random.fork_rng(devices=[])  # training draws numbers of its own
def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def train(model, config):
    """Train two epochs on this client's examples, in an order that depends on client and round only."""
    part = parts[config["partition"]]
    module = network()
    module.load_state_dict(model)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    rng = np.random.default_rng([config["partition"], config["round"]])
    for _ in range(2):
        for batch in part[torch.from_numpy(rng.permutation(len(part)))].split(32):
            optimizer.zero_grad()
            cross_entropy(module(images[batch]), labels[batch]).backward()
            optimizer.step()
    return fl.Update(module.state_dict(), len(part))


@torch.no_grad()
def accuracy(model):
    """Return the share of right answers on images that no client has."""
    module = network()
    module.load_state_dict(model)
    return (module(images[test]).argmax(1) == labels[test]).float().mean().item()


if __name__ == "__main__":
    result = fl.simulate(
        dict(network().state_dict()),
        [train] * CLIENTS,
        rounds=ROUNDS,
        strategy=fl.FedAdam(learning_rate=0.03, compression="int8"),
        measure=accuracy,
    )
    for report, value in zip(result.reports, result.measured, strict=True):
        print(f"round {report.number:2}: accuracy {value:.3f}, {report.bytes_in / 1000:.0f} kB from clients")
