"""How well digits are told apart with noise: python -m benchmarks.federation.privacy. Writes benchmarks-privacy.md.

The same network, data and epsilon with fl, with Opacus, which protects examples where they are, and with Flower's
wrapper for differential privacy. Needs the environment of Flower; Opacus has one of its own (NETQ_BENCH_OPACUS: its
interpreter; without it that row is left out).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fl
from benchmarks import page
from examples.digits import data
from examples.digits import model as digits
from fl.privacy.bounded import Clipping
from fl.secure.noised import NoisedLayout
from fl.secure.roster import Roster
from fl.secure.words import Words
from fl.tensors.spec import specs_of
from netq.bench.output import markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "benchmarks-privacy.md"
OPACUS = os.environ.get("NETQ_BENCH_OPACUS", "")
TOP = """\
# Differential privacy

Written by `python -m benchmarks.federation.privacy --repeat {repeat}`, which writes it again: do not edit.

Machine: {machine}. Flower {flower}.

The digits of scikit-learn, a network of 64, 64 and 10 units, {examples:,} examples for training and {tests} for the
test. Accuracy of the last model: the median of {repeat} seeds, with the least and the largest. A client trains one step
on all that it has. Learning rates and clips are the best of a few for each table, and were found without counting what
that says of the data.

"""
BOTTOM = """\
Opacus draws batches of {batch} examples on average, {epochs} times as many in all as there are, with a rate of
{rate:g} and a clip of {clip:g}; its accountant counts on draws that stay secret. All clients of fl and Flower
take part in each round. The noise by the clients is that of a full round, in which it is more than is counted.
"""
EPSILONS = (2.0, 4.0, 8.0)
NONE = 1e6  # noise_multiplier 0.01: as good as none


class Setting(NamedTuple):
    """A federation."""

    title: str
    clients: int
    delta: float
    rounds: int
    rate: float
    clip: float


EXAMPLES = Setting("One example a client", 1438, 1e-5, 40, 4.0, 4.0)
DEVICES = Setting("Some 14 examples a client", 100, 1e-3, 40, 4.0, 1.0)
BATCH, EPOCHS, RATE, CLIP = 256, 30, 2.0, 1.0  # of Opacus
Accuracy = Callable[[Setting, float, int], float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and write the page."""
    parser = argparse.ArgumentParser("python -m benchmarks.federation.privacy", description="differential privacy")
    parser.add_argument("--repeat", type=int, default=3, help="seeds (default: 3)")
    repeat = parser.parse_args(arguments).repeat
    import flwr

    train, test = data.load()
    top = {"machine": page.machine(), "flower": flwr.__version__, "repeat": repeat}
    lines = TOP.format(examples=len(train.labels), tests=len(test.labels), **top).splitlines()
    of_examples: dict[str, Accuracy] = {"fl, noise by the server": _fl, **({"Opacus": _opacus} if OPACUS else {})}
    of_devices: dict[str, Accuracy] = {
        "fl, noise by the server": _fl,
        "fl, noise by the clients": _masked,
        "Flower, fixed clipping": _flower,
    }
    for setting, ways in ((EXAMPLES, of_examples), (DEVICES, of_devices)):
        lines += _table(setting, ways, repeat)
    lines += BOTTOM.format(batch=BATCH, epochs=EPOCHS, rate=RATE, clip=CLIP).splitlines()
    lines.append("")
    text = "\n".join(lines)
    print(text)
    PAGE.write_text(text, encoding="utf-8")


def _table(setting: Setting, ways: Mapping[str, Accuracy], repeat: int) -> list[str]:
    rows = [["", *(f"epsilon {each:g}" for each in EPSILONS), "no noise"]]
    for name, accuracy in ways.items():
        row = [name]
        for epsilon in (*EPSILONS, NONE):
            found = sorted(accuracy(setting, epsilon, seed) for seed in range(1, repeat + 1))
            row.append(f"{statistics.median(found):.3f} ({found[0]:.3f} to {found[-1]:.3f})")
            print(name, epsilon, found, file=sys.stderr, flush=True)
        rows.append(row)
    about = f"{setting.clients:,} clients, delta {setting.delta:g}, {setting.rounds} rounds"
    return [f"## {setting.title}", "", f"{about}.", "", *markdown(rows), ""]


def _options(setting: Setting, epsilon: float, **more: Any) -> fl.DifferentialPrivacy:
    if epsilon == NONE:
        return fl.DifferentialPrivacy(setting.clip, 0.01, setting.delta)
    return fl.DifferentialPrivacy.for_rounds(setting.rounds, epsilon, clip=setting.clip, delta=setting.delta, **more)


def _trained(model: Mapping[str, Any], client: int, setting: Setting) -> dict[str, Any]:
    examples, _ = data.load()
    own = examples.take(np.arange(client, len(examples.labels), setting.clients))
    gradients = digits.gradients(dict(model), own.images, own.labels)
    return {name: (model[name] - setting.rate * each).astype(np.float32) for name, each in gradients.items()}


def _fl(setting: Setting, epsilon: float, seed: int) -> float:
    def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
        return fl.Update(_trained(model, config["partition"], setting), 1)

    privacy = _options(setting, epsilon)
    initial = digits.initial(seed)
    result = fl.simulate(initial, [train] * setting.clients, setting.rounds, privacy=privacy, seed=seed, progress=False)
    assert len(result.reports) == setting.rounds
    return digits.measure(result.model, data.held_out())[0]


def _masked(setting: Setting, epsilon: float, seed: int) -> float:
    """As `_fl`, with what clients send under masks, but for the masks. Their noise is that of the fewest honest."""
    privacy = _options(setting, epsilon, masks=True)
    model = dict(digits.initial(seed))
    prints = {str(each): bytes([each % 256, each // 256]) * 16 for each in range(setting.clients)}
    roster = Roster(prints, prints)
    form = NoisedLayout(
        specs_of(model),
        Clipping(privacy.clip, privacy.noise_multiplier, False),
        setting.clients,
        roster.least - roster.assumed_liars,
    )
    for _ in range(setting.rounds):
        total = Words.zeros(form.small, form.large)
        for client in range(setting.clients):
            total.add(form.encode(model, _trained(model, client, setting), 1, {}))
        model = form.decode(model, total).model
    return digits.measure(model, data.held_out())[0]


def _flower(setting: Setting, epsilon: float, seed: int) -> float:
    """As `_fl`, with Flower's strategies, and clients that are function calls."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    from fl.flower._compat import identity

    multiplier = _options(setting, epsilon).noise_multiplier
    np.random.seed(seed)  # of its noise
    inner = FedAvg(min_train_nodes=setting.clients, min_available_nodes=setting.clients)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, multiplier, setting.clip, setting.clients)
    grid: Any = _Grid(setting.clients)
    arrays = ArrayRecord(numpy_ndarrays=list(digits.initial(seed).values()))
    names = list(digits.initial(seed))
    with identity(run=1):
        for number in range(1, setting.rounds + 1):
            replies = []
            asked = strategy.configure_train(number, arrays, ConfigRecord(), grid)
            for client, message in enumerate(sorted(asked, key=lambda each: each.metadata.dst_node_id)):
                model = dict(zip(names, arrays.to_numpy_ndarrays(), strict=True))
                found = ArrayRecord(numpy_ndarrays=list(_trained(model, client, setting).values()))
                content = RecordDict({"arrays": found, "metrics": MetricRecord({"num-examples": 1})})
                replies.append(Message(content, reply_to=message))
            arrays, _ = strategy.aggregate_train(number, replies)
    final = dict(zip(names, arrays.to_numpy_ndarrays(), strict=True))
    return digits.measure(final, data.held_out())[0]


class _Grid:
    """What Flower's strategies ask a grid."""

    def __init__(self, clients: int) -> None:
        self._nodes = range(1, clients + 1)

    def get_node_ids(self) -> list[int]:
        return list(self._nodes)


def _opacus(setting: Setting, epsilon: float, seed: int) -> float:
    train, test = data.load()
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        np.savez(file, images=train.images, labels=train.labels, tests=test.images, digits=test.labels)
        file.flush()
        about: dict[str, Any] = {"epsilon": None if epsilon == NONE else epsilon, "delta": setting.delta, "seed": seed}
        about |= {"batch": BATCH, "epochs": EPOCHS, "rate": RATE, "clip": CLIP, "file": file.name}
        script = Path(__file__).with_name("opacus_run.py")
        run = subprocess.run([OPACUS, script, json.dumps(about)], check=True, capture_output=True, text=True)
    return float(run.stdout)


if __name__ == "__main__":
    main()
