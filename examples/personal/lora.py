"""Eight clients adapt a small transformer in bfloat16: all its weights, or adapters of low rank (LoRA) only.

The transformer has random weights, in place of pretrained ones, which each client has already. LoRA: Hu et al., 2021.
"""

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import torch
import torch._dynamo  # the optimizers import it, which takes a second: now, and not in each process that is forked
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, linear

import fl

CLIENTS, ROUNDS, RANK = 8, 5, 2

images, labels = load_digits(return_X_y=True)
images = torch.from_numpy((images / 8 - 1).astype(np.float32)).reshape(-1, 8, 8).bfloat16()  # eight rows are a sequence
labels = torch.from_numpy(labels.astype(np.int64))
order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
test, training = order[:899], order[899:]
parts = [training[part] for part in fl.data.dirichlet(labels[training].numpy(), CLIENTS, alpha=0.5, seed=0)]


class LoRA(nn.Module):
    """A linear layer whose weight is that of another, plus the product of two small trained matrices."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(RANK, base.in_features).to(base.weight) / base.in_features**0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, RANK).to(base.weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 4 * linear(linear(x, self.lora_A), self.lora_B)


class Block(nn.Module):
    """Attention and a dense layer, with the residual connections of a transformer."""

    def __init__(self, size: int, layer: Callable[[nn.Linear], nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(size), nn.LayerNorm(size)])
        self.qkv, self.out = layer(nn.Linear(size, 3 * size)), layer(nn.Linear(size, size))
        self.up, self.down = layer(nn.Linear(size, 2 * size)), layer(nn.Linear(2 * size, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.down(self.up(self.norms[1](x)).relu())


@torch.random.fork_rng(devices=[])  # training draws numbers of its own
def network(trained: str) -> nn.Module:
    """Return the transformer. `trained`: "all"; or "lora" or "lora_B", and the last layer; or the same by "peft"."""
    torch.manual_seed(0)
    layer = LoRA if trained in ("lora", "lora_B") else lambda base: base
    block = Block(32, layer)
    net = nn.Sequential(nn.Linear(8, 32), block, nn.LayerNorm(32), nn.Flatten(), nn.Linear(8 * 32, 10))
    net = net.bfloat16()
    if trained == "peft":
        from peft import LoraConfig, get_peft_model

        layers = LoraConfig(
            r=RANK, lora_alpha=4 * RANK, target_modules=["qkv", "out", "up", "down"], modules_to_save=["4"]
        )
        return get_peft_model(net, layers, autocast_adapter_dtype=False)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(trained == "all" or trained in name or name.startswith("4."))
    return net


def shared(net: nn.Module) -> dict[str, torch.Tensor]:
    """Return what is trained. The rest is equal at all clients, and need not travel."""
    return {name: tensor.detach() for name, tensor in net.named_parameters() if tensor.requires_grad}


def train(model, config):
    """Train one epoch on this client's examples."""
    part, net = parts[config["partition"]], network(config["trained"])
    net.load_state_dict(model, strict=False)
    optimizer = torch.optim.Adam([each for each in net.parameters() if each.requires_grad], config["lr"])
    rng = np.random.default_rng([config["partition"], config["round"]])
    for batch in part[torch.from_numpy(rng.permutation(len(part)))].split(16):
        optimizer.zero_grad()
        cross_entropy(net(images[batch]).float(), labels[batch]).backward()
        optimizer.step()
    return fl.Update(shared(net), len(part))


@torch.no_grad()
def accuracy(trained: str, model) -> float:
    """Return the share of right answers on images that no client has."""
    net = network(trained)
    net.load_state_dict(model, strict=False)
    return (net(images[test]).argmax(1) == labels[test]).float().mean().item()


def run(trained: str, lr: float) -> tuple[float, float]:
    """Return the accuracy after the last round, and the kB of a round from the clients."""
    config = {"trained": trained, "lr": lr}
    result = fl.simulate(shared(network(trained)), [train] * CLIENTS, ROUNDS, config=config)
    return accuracy(trained, result.model), result.reports[-1].bytes_in / 1000


if __name__ == "__main__":
    runs = [("all weights", "all", 0.006), ("LoRA", "lora", 0.015), ("LoRA, only B", "lora_B", 0.015)]
    for name, trained, lr in [*runs, *([("LoRA of peft", "peft", 0.015)] if find_spec("peft") else [])]:
        found, size = run(trained, lr)
        print(f"{name}: accuracy {found:.3f}, {size:.0f} kB a round from {CLIENTS} clients")
