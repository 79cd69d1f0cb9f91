"""compression="auto": the link's rate and the length of the training choose how an update is packed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import fl
from fl.compression.auto import choose
from fl.compression.packed import Packed
from fl.conversation import KnownServer
from fl.envelope import Job
from fl.messages import Task, Update
from fl.trainer import Trainer
from tests.fl.federation import Federation, at

MODEL = 10_000  # elements of float32


def train(model: Any, config: Mapping[str, Any]) -> Update:
    change = np.random.default_rng(config["round"]).standard_normal(MODEL, np.float32)
    return Update({"w": model["w"] + change}, 1)


def trainer(seconds: float, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Packed]:
    """Return a function that trains a round at a rate; the training takes `seconds`."""
    now = iter(np.arange(0, 10**6, seconds))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))
    found = Trainer(train, compression="auto", seed=1)

    def update(number: int, rate: float | None) -> Packed:
        task = Task(Job(1, number, "train"), {"w": np.zeros(MODEL, np.float32)}, {})
        content = found.do(task, rate)
        assert isinstance(content, Update)
        return content.model["w"]  # type: ignore[no-any-return]

    return update


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (None, "int8"),
        (1e6, "none"),
        (500_001.0, "none"),
        (499_999.0, "float16"),
        (100_000.0, "int8"),
        (32_000.0, "int8"),
        (31_000.0, "int8, top_k=0.1"),
        (10.0, "int8, top_k=0.1"),
    ],
)
def test_choice_by_the_rate(rate: float | None, expected: str) -> None:
    assert str(choose(1_000_000, 250_000, 2.0, rate)) == expected


@pytest.mark.parametrize(
    ("rate", "expected"), [(250_001.0, "none"), (249_999.0, "int8"), (31_000.0, "int8, top_k=0.1")]
)
def test_choice_for_bfloat16_never_halves_what_is_half(rate: float, expected: str) -> None:
    assert str(choose(500_000, 250_000, 2.0, rate)) == expected


def test_sizes_are_those_of_packed_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Just below the rate at which a packing would be chosen, the next one is: so the sizes of the table are right."""
    update = trainer(1.0, monkeypatch)
    for number, (part, coding) in enumerate([(1.0, "float32"), (0.51, "float16"), (0.26, "int8")], 1):
        packed = update(number, 4 * MODEL * part)
        assert packed.coding == coding
        assert packed.data.nbytes <= 4 * MODEL * part


def test_what_one_packing_left_out_is_sent_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    update = trainer(1.0, monkeypatch)
    packed = [update(number, rate) for number, rate in enumerate([1.0, 1.0, MODEL * 0.26, 1e9], 1)]
    assert [each.count for each in packed] == [MODEL // 10, MODEL // 10, MODEL, MODEL]
    sent = np.sum([each.unpack() for each in packed], axis=0, dtype=np.float64)
    trained = [np.random.default_rng(number).standard_normal(MODEL, np.float32) for number in range(1, 5)]
    np.testing.assert_allclose(sent, np.sum(trained, axis=0, dtype=np.float64), atol=1e-5)
    last = np.random.default_rng(5).standard_normal(MODEL, np.float32)
    np.testing.assert_array_equal(update(5, 1e9).unpack(), last)  # nothing is left


def test_rate_is_without_the_round_trip() -> None:
    link = KnownServer()
    link.measured(1000, 0.5, None)
    assert link.rate == 2000
    link.measured(1000, 0.5, 0.25)
    assert link.rate == 4000
    link.measured(1000, 0.5, 3.0)  # of another time
    assert link.rate == pytest.approx(20_000)


def test_a_client_measures_its_link(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "netq.fl")
    with Federation({"w": np.zeros(MODEL, np.float32)}, min_clients=1) as federation:
        client = fl.Client(train, compression="auto")
        federation.start(client.run, at(federation.server.netloc, uuid.uuid4()))
        first = federation.round(1)
        federation.round(1)
    assert first.bytes_in < 0.3 * 4 * MODEL
    lines = [record.getMessage() for record in caplog.records if "compression" in record.getMessage()]
    assert lines[0] == "round 1: the link is not measured yet; compression int8"
    assert lines[1].startswith("round 2: the link takes ")
