"""Trains models with statistics under each strategy and compression: does any round end in NaN, and how good is it?

    python -m benchmarks.statistics [--rounds 12] [--model BatchNorm2d] [--strategy FedAdam] [--processes 2]

The data are scikit-learn's digits, with skewed labels (Dirichlet, alpha 0.5), at eight clients that train one epoch a
round. Each line is a strategy and a compression. Each column is a model with one kind of statistic, and the same model
without it: rounds after which the model gave NaN on the test images, then the accuracy after the last round.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.ao import quantization
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrizations import spectral_norm

import fl

CLIENTS, RATE = 8, 0.05
COMPRESSIONS = ("none", "int8", "int4", "top_k=0.1")
STRATEGIES: dict[str, Callable[..., fl.Strategy]] = {
    "FedAvg": fl.FedAvg,
    "FedProx": fl.FedProx,
    "FedAvgM": functools.partial(fl.FedAvgM, momentum=0.5),
    "FedAdagrad": functools.partial(fl.FedAdagrad, learning_rate=0.03),
    "FedAdam": functools.partial(fl.FedAdam, learning_rate=0.03),
    "FedYogi": functools.partial(fl.FedYogi, learning_rate=0.03),
    "QFedAvg": functools.partial(fl.QFedAvg, learning_rate=RATE),
    "FedNova": fl.FedNova,
    "Scaffold": fl.Scaffold,
    "FedAsync": fl.FedAsync,
    "FedBuff": functools.partial(fl.FedBuff, size=8),
    "FedMedian": fl.FedMedian,
    "FedTrimmedAvg": fl.FedTrimmedAvg,
    "Krum": fl.Krum,
    "MultiKrum": fl.MultiKrum,
    "Bulyan": fl.Bulyan,
    "GeometricMedian": fl.GeometricMedian,
}

images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
images = (images / 16).float().reshape(-1, 1, 8, 8)
order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
test, training = order[:359], order[359:]
parts = [training[part] for part in fl.data.dirichlet(labels[training].numpy(), CLIENTS, alpha=0.5, seed=0)]


def dense(layer: Callable[[int], nn.Module] | None) -> nn.Module:
    """Return a network of dense layers, with or without a layer behind the first."""
    torch.manual_seed(0)
    extra = [] if layer is None else [layer(64)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), *extra, nn.ReLU(), nn.Linear(64, 10))


def convolutional(layer: Callable[[int], nn.Module] | None) -> nn.Module:
    """Return a network of two convolutions, with or without a layer behind each."""
    torch.manual_seed(0)
    blocks = [
        [nn.Conv2d(before, after, 3, padding=1), *([] if layer is None else [layer(after)]), nn.ReLU(), nn.MaxPool2d(2)]
        for before, after in ((1, 8), (8, 16))
    ]
    return nn.Sequential(*itertools.chain(*blocks), nn.Flatten(), nn.Linear(64, 10))


def bounded(is_bounded: bool) -> nn.Module:
    """Return the dense network, with or without spectral norm."""
    net = dense(None)
    if is_bounded:
        spectral_norm(net[1])  # type: ignore[index]
    return net


def observed(is_observed: bool) -> nn.Module:
    """Return the dense network, with or without observers for a quantisation."""
    net = nn.Sequential(quantization.QuantStub(), dense(None), quantization.DeQuantStub())
    if is_observed:
        net.qconfig = quantization.default_qat_qconfig  # type: ignore[assignment]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantization.prepare_qat(net.train(), inplace=True)  # type: ignore[no-untyped-call]
    return net


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {  # with the statistic, and without
    "BatchNorm1d": (lambda: dense(nn.BatchNorm1d), lambda: dense(None)),
    "BatchNorm2d": (lambda: convolutional(nn.BatchNorm2d), lambda: convolutional(None)),
    "GroupNorm": (lambda: convolutional(functools.partial(nn.GroupNorm, 4)), lambda: convolutional(None)),
    "spectral norm": (lambda: bounded(True), lambda: bounded(False)),
    "observers": (lambda: observed(True), lambda: observed(False)),
}


def trainer(make: Callable[[], nn.Module]) -> Callable[[Any, Mapping[str, Any]], fl.Update]:
    """Return the train function of a network. It does what each of the strategies needs."""

    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        part, rng = parts[config["partition"]], np.random.default_rng([config["partition"], config["round"]])
        net = make()
        net.load_state_dict(model)
        control = fl.ControlVariate(config["state"]) if "control" in config else None
        if control is not None:
            control.begin(model, config)
        with torch.no_grad():
            loss = cross_entropy(net.eval()(images[part]), labels[part]).item()
        net.train()
        start, steps = {name: tensor.detach().clone() for name, tensor in net.named_parameters()}, 0
        for batch in part[torch.from_numpy(rng.permutation(len(part)))].split(32):
            net.zero_grad()
            proximal = fl.proximal_term(dict(net.named_parameters()), start, config.get("proximal_mu", 0.0))
            (cross_entropy(net(images[batch]), labels[batch]) + proximal).backward()
            steps += 1
            with torch.no_grad():
                for name, parameter in net.named_parameters():
                    correction = 0.0 if control is None else control.correction(name)
                    parameter.sub_(parameter.grad + correction, alpha=RATE)  # type: ignore[operator]
        extra = {} if control is None else control.finish(net.state_dict(), steps, RATE)
        metrics = {"loss": min(loss, 1e6) if math.isfinite(loss) else 1e6, "steps": steps}
        return fl.Update(dict(net.state_dict()), len(part), metrics, extra)

    return train


def accuracy(make: Callable[[], nn.Module], model: Any) -> float:
    """Return the share of right answers on images that no client has; NaN if the model gives NaN."""
    net = make()
    net.load_state_dict(model)
    with torch.no_grad():
        scores = net.eval()(images[test])
    return (scores.argmax(1) == labels[test]).float().mean().item() if scores.isfinite().all() else math.nan


def run(make: Callable[[], nn.Module], strategy: fl.Strategy, rounds: int, processes: int) -> tuple[str, float]:
    """Return the rounds that ended in NaN, and the last accuracy."""
    measured = fl.simulate(
        dict(make().state_dict()),
        [trainer(make)] * CLIENTS,
        rounds * (CLIENTS if strategy.buffer == 1 else 1),  # a round of FedAsync is one update
        strategy=strategy,
        processes=processes,
        measure=functools.partial(accuracy, make),
    ).measured
    wrong = [number for number, value in enumerate(measured, 1) if math.isnan(value)]
    return f"{len(wrong)} NaN" if wrong else "-", measured[-1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.statistics", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--strategy", choices=STRATEGIES, action="append")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    models = arguments.model or list(MODELS)
    print("strategy", "compression", *(f"{name} (without)" for name in models), sep=" | ", flush=True)
    begin, failed = time.monotonic(), 0
    for name, compression in itertools.product(arguments.strategy or STRATEGIES, COMPRESSIONS):
        cells = []
        for model in models:
            found = [
                run(make, STRATEGIES[name](compression=compression), arguments.rounds, arguments.processes)
                for make in MODELS[model]
            ]
            failed += found[0][0] != "-"
            cells.append(f"{found[0][0]} {found[0][1]:.2f} ({found[1][1]:.2f})")
        print(name, compression, *cells, sep=" | ", flush=True)
    print(f"{failed} runs with NaN; {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
