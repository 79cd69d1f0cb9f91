"""Trains on digits with Opacus, and prints the accuracy. Run by benchmarks/federation/privacy.py, with its interpreter.

Imports nothing of the project: where Opacus is installed there is a package `examples` of its own.
"""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


def main() -> None:
    """Train, and print."""
    about = json.loads(sys.argv[1])
    found = np.load(about["file"])
    torch.manual_seed(about["seed"])
    net: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=about["rate"])
    examples = TensorDataset(torch.tensor(found["images"]), torch.tensor(found["labels"]))
    batches = DataLoader(examples, batch_size=about["batch"], shuffle=True)
    engine = PrivacyEngine(accountant="prv")
    made = {"module": net, "optimizer": optimizer, "data_loader": batches, "max_grad_norm": about["clip"]}
    if about["epsilon"] is None:
        net, optimizer, batches = engine.make_private(noise_multiplier=0.0, **made)
    else:
        target = {"target_epsilon": about["epsilon"], "target_delta": about["delta"], "epochs": about["epochs"]}
        net, optimizer, batches = engine.make_private_with_epsilon(**target, **made)
    for _ in range(about["epochs"]):
        for images, labels in batches:
            if len(labels):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(images), labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    with torch.no_grad():
        right = net(torch.tensor(found["tests"])).argmax(1).numpy() == found["digits"]
    print(float(right.mean()))


main()
