"""Packed updates in a real federation: bytes saved, accuracy kept, and agreement of client and server."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import fl
import netq
from examples.digits import data
from examples.digits import model as digits
from fl.compression.packed import Packed
from fl.messages import Task, Update
from tests.fl.federation import SOON, A, B, C, Federation, at, reasons, reply

CLIENTS, ROUNDS = 4, 25
FEWER = {"int8, zstd=3": 4.0, "top_k=0.05, int8": 10.0}  # minimum ratio of bytes without to with compression

Array = np.ndarray[Any, np.dtype[Any]]


def learn(compression: str | None) -> tuple[float, float]:
    """Return the accuracy of a federation on the digits, and the bytes of one update."""
    options = at(netq.NetworkLocation("127.0.0.1", 0))
    config = {"seed": 1, "partitions": CLIENTS}
    strategy = fl.FedAvg(compression=compression, config=config)
    with (
        fl.Server(digits.initial(1), options, strategy=strategy, min_clients=CLIENTS) as server,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):

        def take_part(part: int) -> None:
            client = fl.Client(lambda model, config: digits.train(model, {**config, "partition": part}))
            client.run(at(server.netloc))

        runs = [pool.submit(take_part, part) for part in range(CLIENTS)]
        reports = list(server.rounds(ROUNDS))
        trained: Any = server.model
        accuracy, _ = digits.measure(trained, data.held_out())
        server.close(SOON)
        for run in runs:
            run.result(SOON)
    assert all(len(report.clients) == CLIENTS for report in reports)
    return accuracy, sum(report.bytes_in for report in reports) / CLIENTS / ROUNDS


@pytest.mark.slow
def test_digits_keep_accuracy_with_fewer_bytes() -> None:
    whole, plain = learn(None)
    print(f"\n{'compression':18} accuracy  bytes an update  fewer\n{'none':18} {whole:.3f} {plain:18.0f}")
    for compression, fewer in FEWER.items():
        accuracy, size = learn(compression)
        print(f"{compression:18} {accuracy:.3f} {size:18.0f} {plain / size:6.1f}")
        assert accuracy > whole - 0.01
        assert plain / size > fewer


# Client and server agree


def start() -> dict[str, Any]:
    return {
        "w": np.linspace(-1, 1, 5000, dtype=np.float32).reshape(50, 100),
        "t": torch.linspace(0, 3, 3000),
        "n": np.array(7),
        "h": torch.ones(4, dtype=torch.bfloat16),
    }


def moves(by: float) -> Any:
    def train(model: Any, config: Mapping[str, Any]) -> Update:
        model["w"] += np.float32(by)
        model["t"] += by
        model["n"] += 2
        if "h" in model:
            model["h"] += 1
        return Update(model, 1)

    return train


def array(tensor: Any) -> Array:
    found: Array = tensor.float().numpy() if isinstance(tensor, torch.Tensor) else np.asarray(tensor)
    return found


@pytest.mark.parametrize("text", ["float16", "int8", "int4", "zstd=3", "int8, zstd=9"])
@pytest.mark.parametrize("make", [fl.FedAvg, fl.FedMedian])
def test_packed_update_is_folded_as_its_model(make: Any, text: str) -> None:
    with Federation(start(), strategy=make(compression=text)) as federation:
        federation.join(A, moves(0.5))
        federation.join(B, moves(1.5))
        report = federation.round(2)
        assert (set(report.clients), report.failures) == ({A, B}, {})
        found: Any = federation.server.model
    np.testing.assert_allclose(found["w"], start()["w"] + 1, atol=0.15)  # an int4 has 15 levels
    np.testing.assert_allclose(found["t"], start()["t"] + 1, atol=0.15)
    assert abs(float(array(found["w"] - start()["w"]).mean()) - 1) < 0.01, "its rounding has no bias"
    assert found["n"] == 9
    assert found["h"].tolist() == [2] * 4
    assert isinstance(found["t"], torch.Tensor)


def test_delta_strategy_gets_unpacked_changes() -> None:
    model = {name: tensor for name, tensor in start().items() if name != "h"}  # bfloat16 is not sent as a change
    with Federation(model, strategy=fl.FedBuff(1, compression="int8"), min_clients=1) as federation:
        federation.join(A, moves(1))
        for number in (1, 2):
            assert federation.round(1).failures == {}
            found: Any = federation.server.model
            np.testing.assert_allclose(found["w"], start()["w"] + number, atol=0.02)
            assert found["n"] == 7 + 2 * number


def test_client_compression_takes_precedence() -> None:
    with Federation({"w": np.zeros(50_000, np.float32)}, strategy=fl.FedAvg(compression="int8")) as federation:
        sizes = {}
        for id, own in ((A, None), (B, "top_k=0.01, int8"), (C, "none")):

            def train(model: Any, config: Mapping[str, Any]) -> Update:
                return Update({"w": model["w"] + np.linspace(0, 1, 50_000, dtype=np.float32)}, 1)

            federation.start(fl.Client(train, compression=own).run, at(federation.server.netloc, id))
        federation.server.wait(3, SOON)
        before = federation.server._members.queue.statistics()
        assert set(federation.round(3).clients) == {A, B, C}
        after = federation.server._members.queue.statistics()
        sizes = {id: after[id].bytes_in - before[id].bytes_in for id in (A, B, C)}
    assert 50_000 < sizes[A] < 52_000
    assert sizes[B] < 2_000
    assert sizes[C] > 200_000


def test_residual_is_sent_later_and_dropped_for_a_new_server() -> None:
    """Each round sends one element of a hundred; what was trained once must arrive in the end."""
    trained: list[int] = []
    settings: dict[str, Any] = {"strategy": fl.FedAvg(compression="top_k=0.01"), "min_clients": 1}

    def once(model: Any, config: Mapping[str, Any]) -> Update:
        first = not trained
        trained.append(config["round"])
        return Update({"w": model["w"] + np.float32(first)}, 1)

    def moved(federation: Federation) -> int:
        federation.round(1)
        return int((np.asarray(federation.server.model["w"]) == 1).sum())

    client = fl.Client(once)
    with Federation({"w": np.zeros(1000, np.float32)}, **settings) as one:
        running = one.start(client.run, at(one.server.netloc, A))
        assert [moved(one) for _ in range(3)] == [10, 20, 30]
        one.server.close(SOON)
        running.result(SOON)
    with Federation({"w": np.zeros(1000, np.float32)}, **settings) as two:
        two.start(client.run, at(two.server.netloc, A))
        assert moved(two) == 0


@pytest.mark.parametrize("wrong", ["int3", "top_k=2", "zstd=99", "gzip", 5])
def test_unknown_compression_is_refused_at_construction(wrong: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        fl.FedAvg(compression=wrong)
    with pytest.raises(ValueError, match="expected"):
        fl.Client(lambda model, config: Update(model, 1), compression=wrong)


def test_diverged_training_fails_its_client_only() -> None:
    with Federation({"w": np.zeros(9, np.float32)}, strategy=fl.FedAvg(compression="int8")) as federation:
        federation.join(A, lambda model, config: Update({"w": model["w"] + 2}, 1))
        federation.join(B, lambda model, config: Update({"w": model["w"] + 2}, 1))
        federation.join(C, lambda model, config: Update({"w": model["w"] + np.float32(np.nan)}, 1))
        report = federation.round(3)
        assert set(report.clients) == {A, B}
        assert "NaN" in reasons(report)[C]


def test_unfitting_packed_tensor_is_refused_before_unpacking() -> None:
    vast = Packed("float32", (2**40,), "int8", 0, False, np.empty(0, np.uint8))

    def answer(task: Task) -> list[Any]:
        return [reply(task, Update({"w": vast}, 1))]

    with Federation(min_clients=1) as federation:
        federation.join(A, lambda model, config: Update(model, 1))
        federation.join_raw(B, answer)
        report = federation.round(2)
        assert report.failures[B] == fl.ClientFailure(
            fl.FailureKind.INVALID,
            "'w' is the change of a float32 of shape (1099511627776,); expected that of a float32 of shape (3,)",
        )
