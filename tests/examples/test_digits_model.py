"""The digits demo's parts: the split, the model, the reference, the picture; and, slow, the demo itself."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import fl
from examples.digits import broker, data, model, plot
from examples.digits.reference import largest_difference, mean, reference
from examples.digits_torch import model as torch_model
from tests.examples.test_readmes import assert_prints
from tests.pages import Page

CONFIG: dict[str, Any] = {"seed": 0, "partition": 1, "partitions": 4, "round": 1}


@given(
    labels=st.lists(st.integers(0, 9), min_size=12, max_size=200),
    partitions=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_split_assigns_each_example_once(labels: list[int], partitions: int, seed: int) -> None:
    parts = data.split(np.array(labels), partitions, seed)
    assert len(parts) == partitions
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(len(part) for part in parts) >= min(data.LEAST, len(labels) // partitions)


def test_more_partitions_than_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="2 examples cannot be dealt out to 3 partitions"):
        data.split(np.array([0, 1]), 3, seed=0)


@pytest.mark.slow
def test_clients_and_server_partition_the_examples() -> None:
    training, held_out = data.load()
    parts = [data.partition(CONFIG | {"partition": number}) for number in range(4)]
    assert sum(len(part.labels) for part in parts) == len(training.labels)
    assert len(training.labels) + len(held_out.labels) == 1797
    seen = {image.tobytes() for part in parts for image in part.images}
    assert seen == {image.tobytes() for image in training.images}
    assert seen.isdisjoint(image.tobytes() for image in held_out.images)


def test_clients_see_different_examples() -> None:
    labels = data.load()[0].labels
    counts = np.array([np.bincount(labels[part], minlength=10) for part in data.split(labels, 4, seed=0)])
    assert (counts.max(axis=0) > 2 * counts.mean(axis=0)).sum() >= 3


def test_each_epoch_has_each_example_once() -> None:
    examples = data.partition(CONFIG)
    images = np.concatenate([batch.images for batch in data.batches(examples, CONFIG)])
    assert len(images) == data.EPOCHS * len(examples.labels)
    first = images[: len(examples.labels)]
    assert sorted(map(bytes, first)) == sorted(map(bytes, examples.images))
    assert not np.array_equal(first, images[len(examples.labels) :])


@pytest.mark.parametrize("changed", ["seed", "partition", "round"])
def test_seed_partition_and_round_decide_the_order(changed: str) -> None:
    examples = data.held_out()
    batch, again = (next(data.batches(examples, CONFIG)) for _ in range(2))
    other = next(data.batches(examples, CONFIG | {changed: 7}))
    assert np.array_equal(batch.images, again.images)
    assert not np.array_equal(batch.images, other.images)


def double(weights: model.Model) -> model.Model:
    return {name: array.astype(np.float64) for name, array in weights.items()}


def slope(weights: model.Model, name: str, index: tuple[int, ...], batch: data.Examples) -> float:
    """The central difference of the loss at one weight."""
    step = 1e-6
    losses = []
    for offset in (step, -step):
        moved = {key: array.copy() for key, array in weights.items()}
        moved[name][index] += offset
        losses.append(model.measure(moved, batch)[1])
    return (losses[0] - losses[1]) / (2 * step)


@pytest.mark.parametrize("name", ["hidden.weight", "hidden.bias", "output.weight", "output.bias"])
def test_gradients_are_the_slopes_of_the_loss(name: str) -> None:
    examples = data.held_out()
    batch = data.Examples(examples.images[:8].astype(np.float64), examples.labels[:8])
    weights = double(model.initial(0))
    gradient = model.gradients(weights, *batch)[name]
    assert gradient.shape == weights[name].shape
    rng = np.random.default_rng(0)
    for _ in range(20):
        index = tuple(int(rng.integers(size)) for size in gradient.shape)
        assert gradient[index] == pytest.approx(slope(weights, name, index, batch), rel=1e-4, abs=1e-8)


def test_training_is_a_function_of_model_and_config() -> None:
    weights = model.initial(0)
    before = {name: array.copy() for name, array in weights.items()}
    one, other = model.train(weights, CONFIG), model.train(weights, CONFIG)
    assert largest_difference(one.model, other.model) == 0
    assert largest_difference(weights, before) == 0  # the server's model is left as it was
    assert {array.dtype for array in one.model.values()} == {np.dtype(np.float32)}
    assert one.num_examples == len(data.partition(CONFIG).labels)


def test_training_lowers_the_loss_that_evaluate_reports() -> None:
    weights = model.initial(0)
    before = model.evaluate(weights, CONFIG)
    after = model.evaluate(model.train(weights, CONFIG).model, CONFIG)
    assert after.metrics["loss"] < before.metrics["loss"] / 2
    assert after.metrics["accuracy"] > before.metrics["accuracy"]
    assert after.num_examples == len(data.partition(CONFIG).labels)


def test_the_mean_is_weighted_by_examples() -> None:
    def update(value: float, num_examples: int) -> fl.Update:
        weights: NDArray[np.float32] = np.full((2, 2), value, np.float32)
        return fl.Update({"weight": weights}, num_examples)

    result = mean([update(1, 1), update(5, 3)])
    assert result["weight"].dtype == np.float32
    assert result["weight"].tolist() == [[4, 4], [4, 4]]


def test_models_with_different_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="different layers"):
        largest_difference({"a": np.zeros(1)}, {"b": np.zeros(1)})


@pytest.mark.slow
def test_numpy_and_torch_give_the_same_model() -> None:
    import torch

    weights = model.initial(0)
    tensors = {name: torch.from_numpy(array.copy()) for name, array in weights.items()}
    assert largest_difference(model.train(weights, CONFIG).model, torch_model.train(tensors, CONFIG).model) < 1e-4
    assert model.measure(weights, data.held_out()) == pytest.approx(torch_model.measure(tensors, data.held_out()))


def test_torch_training_does_not_change_the_servers_tensors() -> None:
    tensors = torch_model.initial(0)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    update = torch_model.train(tensors, CONFIG)
    assert largest_difference(tensors, before) == 0
    assert largest_difference(update.model, before) > 0


@pytest.mark.parametrize("seed", [0, 1])
def test_the_reference_learns_the_digits(seed: int) -> None:
    accuracy, _ = model.measure(reference(30, model, partitions=4, seed=seed), data.held_out())
    assert accuracy >= 0.95


@pytest.mark.slow
def test_the_torch_reference_learns_the_digits() -> None:
    accuracy, _ = torch_model.measure(reference(30, torch_model), data.held_out())
    assert accuracy >= 0.95


@pytest.fixture(scope="module")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let matplotlib open its fonts, once: it keeps them open as long as the process lives."""
    plot.accuracy_by_round([0.5], tmp_path_factory.mktemp("fonts") / "any.png")


@pytest.mark.usefixtures("fonts")
def test_plot_creates_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "accuracy.png"
    plot.accuracy_by_round([0.3, 0.8, 0.95], path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert path.stat().st_size > 2000


@pytest.mark.timeout(1100)
@pytest.mark.slow
@pytest.mark.parametrize("example", ["digits", "digits_torch"])
def test_demo_of_the_readme_equals_the_reference(tmp_path: Path, example: str) -> None:
    page = Page(f"examples/{example}/README.md")
    (command,) = page.blocks("sh")
    program, *arguments = shlex.split(command)
    arguments += ["--out", str(tmp_path / "accuracy.png")]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=1000)
    assert (program, done.returncode, done.stderr) == ("python", 0, "")
    assert_prints(page, done.stdout)
    *_, difference, last = done.stdout.splitlines()
    assert float(difference.rpartition(" ")[2]) <= 1e-5
    assert float(last.removeprefix("final accuracy ")) > 0.6
    assert (tmp_path / "accuracy.png").is_file()


@pytest.mark.timeout(1100)
@pytest.mark.slow
@pytest.mark.skipif(broker.program() is None, reason="no mosquitto here; `apt install mosquitto` brings it")
def test_demo_over_a_broker_is_sealed(tmp_path: Path) -> None:
    command = ["-m", "examples.digits", "--protocol", "mqtt", "--rounds", "1", "--clients", "2"]
    command += ["--out", str(tmp_path / "accuracy.png")]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=1000)
    assert (done.returncode, done.stderr) == (0, "")
    _, links, *_ = done.stdout.splitlines()
    assert links.startswith("2 connected: sealed from end to end, ")
    assert links.endswith(", MLKEM768_X25519; to the broker TLSv1.3")
