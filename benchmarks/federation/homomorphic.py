"""What homomorphic encryption costs: python -m benchmarks.federation.homomorphic.

Writes docs/reference/benchmarks-homomorphic.md: bytes, seconds, errors and memory, compared with masks and plain
updates, and the accuracy of the digits of examples/digits. Each figure is of one run.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import fl
import netq
from benchmarks import page
from benchmarks.federation.processes import LIMIT
from examples.digits import data
from examples.digits import model as digits
from fl.aggregation.mean import WeightedMean
from fl.homomorphic.codec import HEADER
from fl.homomorphic.context import Key, new_key
from fl.homomorphic.options import EVERYTHING, PARAMETERS
from fl.secure.words import Words
from netq.bench.output import markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "benchmarks-homomorphic.md"
TOP = """\
# Homomorphic encryption

Written by `python -m benchmarks.federation.homomorphic`, which writes it again: do not edit.

Machine: {machine}. TenSEAL {tenseal}.
One run of each, on a machine that other work shared: read times as ±50 %.

CKKS by TenSEAL, with the secret key that all clients share. "ciber-cafe": N = 8192, moduli of [60, 40, 40, 60] bits,
scale 2^40. "sums": N = 4096, [54, 54], 2^30. "sums, a part": a key of `--encrypt 'hidden.*'`, which is {part:.0f} % of
the values; of the digits it is the first of two layers. Masks: `fl.SecureAggregation()`. Plain: `fl.FedAvg()`.

## Bytes, seconds, errors, memory

"Up": bytes that a client sends in a round, by those of the model in float32. Encrypt, add and decrypt: seconds for 100
MB of float32, on one core, measured with {mb} MB and multiplied by {factor}; ciphertexts are serialised, and loaded
where they are added or decrypted. Of a part "add" has the mean of the plain values, too. Of masks "encrypt" is the
time of one for each of nine neighbours, "add" that of an addition, and "decrypt" that of one mask that is taken off.
"Error": the largest of the mean of ten clients with 50 to 140 examples, in {values:,} values of float64 with a
deviation of 0.1, against their mean in float64. "Memory": the peak of the server's process in three rounds of
{clients} clients with a model of {mb} MB, above that before the first round, in MB and in updates as they travel.

"""
READS = """
## Who can read what

|                       | CKKS                             | masks                               | plain        |
| --------------------- | -------------------------------- | ----------------------------------- | ------------ |
| server                | first model, counts, all metrics | sums: models, counts, named metrics | every update |
| one client            | models, and any update it gets   | models                              | models       |
| server and one client | every update                     | sum of the others                   | every update |
| network, without TLS  | as the server                    | models, and which clients take part | every update |

Counts are numbers of examples: with CKKS each client's, with masks their sum. Of a part the column CKKS holds for the
values that are encrypted, and the column "plain" for the others.
"""
DIGITS_TOP = """
## Accuracy

The digits of examples/digits: {clients} clients, {rounds} rounds, seed 0; accuracy and loss of the last model on the
examples of all clients.

"""
VALUES = 40_000
MB, CLIENTS, ROUNDS = 10, 4, 3
DIGITS_ROUNDS = 30
PART = 0.1  # of the values, which are encrypted
WAYS = ("ciber-cafe", "sums", "sums, a part", "masks", "plain")


class Way(NamedTuple):
    """How updates are protected: arguments of fl.Server and of fl.Client."""

    server: Mapping[str, Any]
    client: Mapping[str, Any]


def main() -> None:
    """Measure, and write the page."""
    import tenseal

    with tempfile.TemporaryDirectory() as folder:
        ways = {name: _way(name, Path(folder)) for name in WAYS}
        rows = [["", "up", "encrypt, s", "add, s", "decrypt, s", "error", "memory, MB", "in updates"]]
        for name, way in ways.items():
            steps = _steps(name)
            error = _error(way)
            up, peak = _memory(way)
            scaled = [f"{seconds * 100 / MB:.2g}" for seconds in steps]
            ratio, size = f"{up / (MB * 1e6):.2f}", f"{peak / 1e6:.0f}"
            rows.append([name, ratio, *scaled, f"{error:.1e}", size, f"{peak / up:.1f}"])
            print(rows[-1], file=sys.stderr, flush=True)
        accuracies = [["", "accuracy", "loss"], *([name, *_digits(way)] for name, way in ways.items())]
    top = TOP.format(
        machine=page.machine(),
        tenseal=tenseal.__version__,
        part=100 * PART,
        mb=MB,
        factor=100 // MB,
        values=VALUES,
        clients=CLIENTS,
    )
    digits_top = DIGITS_TOP.format(clients=CLIENTS, rounds=DIGITS_ROUNDS)
    lines = [*top.splitlines(), *markdown(rows), *READS.splitlines(), *digits_top.splitlines(), *markdown(accuracies)]
    text = "\n".join([*lines, ""])
    print(text)
    PAGE.write_text(text, encoding="utf-8")


def _way(name: str, folder: Path) -> Way:
    if name == "plain":
        return Way({}, {})
    if name == "masks":
        return Way({"secure": fl.SecureAggregation(), "strategy": fl.FedAvg(max_examples=1500)}, {})
    parameters, _, is_part = name.partition(",")
    made = new_key(PARAMETERS[parameters], ["hidden.*"] if is_part else EVERYTHING)
    key, context = folder / f"{name}.key", folder / f"{name}.context"
    made.write(key)
    replace(made, secret=None).write(context)
    return Way({"secure": fl.Homomorphic(context)}, {"secure": fl.SecurePolicy(key=key)})


def _steps(name: str, mb: float = MB) -> tuple[float, float, float]:
    """Return the seconds to encrypt, to add and to decrypt these MB of float32."""
    if name == "sums, a part":
        part, rest = _steps("sums", mb * PART), _steps("plain", mb * (1 - PART))
        return part[0], part[1] + rest[1], part[2]
    count = int(mb * 1e6 / 4)
    if name == "plain":
        model = {"w": np.ones(count, np.float32)}
        mean = WeightedMean(model)
        mean.fold(model, 1)
        return 0.0, _seconds(lambda: mean.fold(model, 1)), 0.0
    if name == "masks":
        words, vector = Words.zeros(count, 1), np.zeros(count, np.uint32)
        nine = _seconds(lambda: words.mask([os.urandom(32) for _ in range(9)]))
        return (
            nine,
            _seconds(lambda: np.add(vector, vector, out=vector)),
            _seconds(lambda: words.mask([os.urandom(32)])),
        )
    key = Key(new_key(PARAMETERS[name]))
    values, slots = np.random.default_rng(0).normal(size=count), key.parameters.slots
    found: list[Any] = []
    encrypt = _seconds(lambda: found.extend(key.encrypt(values[at : at + slots]) for at in range(0, count, slots)))
    total = [key.load(each) for each in found]

    def add() -> None:
        for at, each in enumerate(found):
            total[at] += key.load(each)

    return encrypt, _seconds(add), _seconds(lambda: [key.decrypt(each) for each in found])


def _seconds(step: Callable[[], object]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def _error(way: Way) -> float:
    """Return the largest error of the mean of ten clients."""
    start = np.random.default_rng(0).normal(scale=0.1, size=VALUES)
    changes = [np.random.default_rng(1 + each).normal(scale=0.1, size=VALUES) for each in range(10)]
    examples = [50 + 10 * each for each in range(10)]

    def train(each: int, model: Any, config: Any) -> fl.Update:
        return fl.Update(_layers(start + changes[each]), examples[each])

    found = _federate(way, _layers(start), [partial(train, each) for each in range(10)], 1)
    mean = start + sum(weight * change for weight, change in zip(examples, changes, strict=True)) / sum(examples)
    return max(float(np.abs(found[name] - layer).max()) for name, layer in _layers(mean).items())


def _layers(values: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return values as two tensors, of which "hidden" has a part."""
    first = int(values.size * PART)
    return {"hidden.weight": values[:first], "output.weight": values[first:]}


def _digits(way: Way) -> tuple[str, str]:
    """Return accuracy and loss of the digits' model."""
    config = {"seed": 0, "partitions": CLIENTS}

    def train(each: int, model: Any, given: Any) -> fl.Update:
        return digits.train(model, {**config, "partition": each, "round": given["round"]})

    found = _federate(way, digits.initial(0), [partial(train, each) for each in range(CLIENTS)], DIGITS_ROUNDS)
    parts = [data.partition({**config, "partition": each}) for each in range(CLIENTS)]
    weights = [len(part.labels) for part in parts]
    accuracy, loss = np.average([digits.measure(found, part) for part in parts], axis=0, weights=weights)
    return f"{accuracy:.4f}", f"{loss:.6f}"


def _federate(way: Way, model: Any, trains: Sequence[Callable[..., fl.Update]], rounds: int) -> Any:
    """Return the last model, as the clients have it."""
    last: list[Any] = []
    with _server(way, model, len(trains)) as server:
        threads = [threading.Thread(target=_take_part, args=(way, server.netloc.port, each, last)) for each in trains]
        for thread in threads:
            thread.start()
        for _ in server.rounds(rounds):
            pass
    for thread in threads:
        thread.join()
    assert HEADER not in last[0]
    return last[0]


def _server(way: Way, model: Any, clients: int) -> fl.Server:
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
    return fl.Server(model, options, min_clients=clients, patience=fl.Patience(deadline=LIMIT), **way.server)


def _take_part(way: Way, port: int, train: Callable[..., fl.Update], last: list[Any]) -> None:
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", port))
    last.append(fl.Client(train, **way.client).run(options))


def _memory(way: Way) -> tuple[float, float]:
    """Return the bytes that a client sends in a round, and the peak of the server's process above its start."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=_serve, args=(way, there), daemon=True)
    server.start()
    clients = context.Process(target=_add, args=(way, here.recv()), daemon=True)
    clients.start()
    found: tuple[float, float] = here.recv()
    clients.join()
    server.join()
    return found


def _serve(way: Way, pipe: Connection) -> None:
    model = _layers(np.zeros(int(MB * 1e6 / 4), np.float32))
    with _server(way, model, CLIENTS) as server:
        pipe.send(server.netloc.port)
        server.wait(CLIENTS)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _peak()
        reports = list(server.rounds(ROUNDS))
        pipe.send((reports[-1].bytes_in / CLIENTS, _peak() - before))


def _add(way: Way, port: int) -> None:
    def train(model: Any, config: Any) -> fl.Update:
        return fl.Update({name: layer + np.float32(1) for name, layer in model.items()}, 1)

    threads = [threading.Thread(target=_take_part, args=(way, port, train, [])) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _peak() -> float:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024.0


if __name__ == "__main__":
    main()
