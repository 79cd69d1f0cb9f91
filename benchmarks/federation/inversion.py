"""What a server sees of a client's images: python -m benchmarks.federation.inversion. Writes benchmarks-inversion.md.

A small attack of the kind that reads training data from updates, on digits: with and without masks and noise.

Source: Phong et al., 2018, "Privacy-preserving deep learning via additively homomorphic encryption", section III: the
change of a weight in the first layer is the change of its unit's bias, times the input. So of one example any unit
shows all of it; of several each unit shows a mean of them, by how much each moves the unit. Where that layer is
encrypted, the next one shows what came out of it in the same way, and the server solves the layer as it knows it, that
of the first model, for its input.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import page
from examples.digits import data
from examples.digits import model as digits
from fl.privacy.accountant import of_gaussian
from fl.privacy.bounded import Bounded, Clipping
from fl.privacy.noise import normal
from fl.secure.layout import Layout
from fl.tensors.spec import specs_of
from netq.bench.output import markdown

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "benchmarks-inversion.md"
TOP = """\
# What an update shows

Written by `python -m benchmarks.federation.inversion --repeat {repeat}`, which writes it again: do not edit.

Machine: {machine}.

Each client has some digits of scikit-learn, and trains a network of 64, 64 and 10 units from its first values. The
server divides, for each unit of the first layer, the change of the weights by that of the bias, and has 64 images
(Phong et al., 2018). The score is how like the best of them is to one of the client's images: the correlation of their
pixels, the mean over {repeat} clients. "By chance" is the score of images of other clients.

"""
BOTTOM = """\
An update of one example is that example. What masks leave hides it as well as other clients' images do: a sum of ten
single examples still shows much, a sum of ten times sixteen no more than chance. Noise is that of
`fl.DifferentialPrivacy(clip={clip:g}, noise_multiplier={multiplier:g})`, of epsilon {epsilon:.1f} at delta 1e-5 for
one round: on the update of each client by itself, as a device could add it, and on the sum of all. It is one attack of
many, and a simple one: a low score says that this one fails.

Encrypted layers are those of a [key for a part](../how-to/homomorphic.md#to-encrypt-a-part): the server has the changes
of the other. That of the first layer is all that the attack needs, so a key for the last one changes nothing. With a
key for the first layer, the server divides the changes of the last one, has what came out of the first layer, and
solves the first layer for its input, as that layer is in the first model, which is plain. In the first round it has one
example as it is. So has, in any round, a server that lies and sends a plain model again. "Later" is a round of an
honest server, {later} steps with {others} examples behind the first model: there this attack fails. Attacks that change
an image until its gradients are those of the plain layers (Zhu et al., 2019, "Deep leakage from gradients") were not
tried.
"""
CLIENTS = 10  # of a sum
CLIP, MULTIPLIER = 1.0, 1.0
RATE, EPOCHS = 0.1, 2
LATER, OTHERS = 500, 200  # steps that lie between the first model and a later one, each with so many examples
Model = Mapping[str, NDArray[Any]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Attack, and write the page."""
    parser = argparse.ArgumentParser("python -m benchmarks.federation.inversion", description="inversion of updates")
    parser.add_argument("--repeat", type=int, default=50, help="clients that are attacked (default: 50)")
    repeat = parser.parse_args(arguments).repeat
    rows = [["", "1 example, 1 step", "4 examples, 1 step", f"16 examples, {EPOCHS} epochs"]]
    for name, seen in SEEN.items():
        row = [name]
        for examples, epochs in ((1, 1), (4, 1), (16, EPOCHS)):
            scores = [_score(seen, examples, epochs, client) for client in range(repeat)]
            row.append(f"{np.mean(scores):.2f}")
        rows.append(row)
        print(row, flush=True)
    epsilon = of_gaussian(MULTIPLIER, 1e-5)
    lines = [*TOP.format(repeat=repeat, machine=page.machine()).splitlines(), *markdown(rows), ""]
    lines += [
        *BOTTOM.format(clip=CLIP, multiplier=MULTIPLIER, epsilon=epsilon, later=LATER, others=OTHERS).splitlines(),
        "",
    ]
    text = "\n".join(lines)
    print(text)
    PAGE.write_text(text, encoding="utf-8")


def _score(seen: Callable[[Model, list[Model]], Model], examples: int, epochs: int, client: int) -> float:
    """Return how well the attack on one client does, in a federation of clients with so many examples."""
    everything, _ = data.load()
    own = [_examples(everything, client + each, examples) for each in range(CLIENTS)]
    first = digits.initial(client)
    start = _later(client) if seen is _without_first_later else first
    trained = [_trained(start, each, epochs) for each in own]
    change = seen(start, trained)
    return _likeness(_guessed(first, change), own[0].images)


def _guessed(first: Model, change: Model) -> NDArray[Any]:
    """Return images from the change of a client's tensors, and the values of the first model."""
    if "hidden.weight" in change:
        return _inputs(change["hidden.weight"], change["hidden.bias"])
    outputs = np.clip(_inputs(change["output.weight"], change["output.bias"]), -0.999, 0.999)  # of tanh
    found: NDArray[Any] = np.linalg.lstsq(
        first["hidden.weight"], np.arctanh(outputs).T - first["hidden.bias"][:, None]
    )[0]
    return found.T


def _inputs(weight: NDArray[Any], bias: NDArray[Any]) -> NDArray[Any]:
    found: NDArray[Any] = weight / np.where(bias == 0, 1, bias)[:, None]
    return found


def _likeness(guessed: NDArray[Any], images: NDArray[Any]) -> float:
    one, other = (each - each.mean(axis=1, keepdims=True) for each in (guessed.astype(np.float64), images))
    one = one / np.maximum(np.linalg.norm(one, axis=1, keepdims=True), 1e-12)
    other = other / np.linalg.norm(other, axis=1, keepdims=True)
    return float((one @ other.T).max())


def _examples(everything: data.Examples, client: int, count: int) -> data.Examples:
    order = np.random.default_rng(7).permutation(len(everything.labels))
    return everything.take(np.take(order, range(client * count, (client + 1) * count), mode="wrap"))


def _trained(start: Model, examples: data.Examples, epochs: int) -> Model:
    model = {name: each.copy() for name, each in start.items()}
    for _ in range(epochs):
        for name, gradient in digits.gradients(model, examples.images, examples.labels).items():
            model[name] -= np.float32(RATE) * gradient
    return model


@functools.cache
def _later(client: int) -> Model:
    """Return the first model after a training with examples of other clients."""
    return _trained(digits.initial(client), _examples(data.load()[0], client + 1, OTHERS), LATER)


def _change(start: Model, trained: Model) -> Model:
    return {name: trained[name].astype(np.float64) - start[name] for name in start}


def _plain(start: Model, trained: list[Model]) -> Model:
    return _change(start, trained[0])


def _without_first(start: Model, trained: list[Model]) -> Model:
    """What is plain with a key for hidden.*"""
    return {name: each for name, each in _change(start, trained[0]).items() if not name.startswith("hidden.")}


def _without_first_later(start: Model, trained: list[Model]) -> Model:
    return _without_first(start, trained)


def _without_last(start: Model, trained: list[Model]) -> Model:
    return {name: each for name, each in _change(start, trained[0]).items() if not name.startswith("output.")}


def _masked(start: Model, trained: list[Model]) -> Model:
    """What a server has of one client under masks, read as an update."""
    words = Layout(specs_of(start), dict.fromkeys(start, 1.0), (), CLIENTS, 1).encode(start, trained[0], 1, {})
    words.mask([os.urandom(32)])
    ends = np.cumsum([each.size for each in start.values()])
    parts = np.split(words.small.view(np.int32)[: ends[-1]].astype(np.float64), ends[:-1])
    return {name: part.reshape(start[name].shape) for name, part in zip(start, parts, strict=True)}


def _sum(start: Model, trained: list[Model]) -> Model:
    """What masks leave."""
    changes = [_change(start, each) for each in trained]
    return {name: np.mean([each[name] for each in changes], axis=0) for name in start}


def _noised(start: Model, trained: list[Model]) -> Model:
    """An update with noise of its own."""
    return _change(start, _with_noise(start, trained[:1]))


def _noised_sum(start: Model, trained: list[Model]) -> Model:
    return _change(start, _with_noise(start, trained))


def _with_noise(start: Model, trained: list[Model]) -> Model:
    bounded = Bounded(specs_of(start), Clipping(CLIP, MULTIPLIER, False), len(trained))
    total = np.rint(bounded.deviation * normal(bounded.size))
    for each in trained:
        total += np.concatenate([block.copy() for block in bounded.whole(start, each)])
    return bounded.moved(start, total)


def _chance(start: Model, trained: list[Model]) -> Model:
    """The update of another client."""
    return _change(start, trained[-1])


SEEN: dict[str, Callable[[Model, list[Model]], Model]] = {
    "the update": _plain,
    "the last layer encrypted": _without_last,
    "the first layer encrypted": _without_first,
    "the first layer encrypted, later": _without_first_later,
    f"the sum of {CLIENTS} clients, which masks leave": _sum,
    "a vector under masks": _masked,
    "the update with noise": _noised,
    f"the sum of {CLIENTS} clients with noise": _noised_sum,
    "by chance": _chance,
}

if __name__ == "__main__":
    main()
