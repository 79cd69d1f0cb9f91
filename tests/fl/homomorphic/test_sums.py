"""Sums of ciphertexts against float64, and what a client and a server refuse."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from fl.compression.packed import Packed
from fl.envelope import Job
from fl.errors import InvalidUpdate
from fl.homomorphic.client import Encrypting
from fl.homomorphic.codec import CIPHERTEXTS, HEADER, Header, join, split
from fl.messages import Report, Update, with_fields
from fl.tensors.spec import Spec
from tests.fl.homomorphic.keys import Circle, files, payload, with_payload

RANDOM = np.random.default_rng(7)
MODEL: dict[str, Any] = {
    "w": RANDOM.normal(size=(70, 61)),
    "single": RANDOM.normal(size=5).astype(np.float32),
    "half": RANDOM.normal(size=5).astype(np.float16),
    "complex": np.array([1 + 2j, 3j]),
    "running_mean": np.zeros(3),
    "count": np.array([2**31 - 9, -4], np.int64),
    "flag": np.array([True, False]),
    "empty": np.zeros((0, 3), np.float32),
}
FEW = {"w": np.ones(3, np.float32)}


@pytest.mark.parametrize(("name", "error"), [("ciber-cafe", 1e-8), ("sums", 5e-6)])
def test_the_mean_is_that_of_float64(name: str, error: float) -> None:
    circle = Circle({**MODEL, "count": np.array([4, -4])} if name == "sums" else MODEL, name)
    for _ in range(2):  # the second round begins with ciphertexts
        start: Any = circle.client.begin(circle.task).opened(circle.task).model
        trained: list[Any] = [start["w"] + RANDOM.normal(size=(70, 61)) for _ in range(3)]
        updates: list[dict[str, Any]] = [{**start, "w": each} for each in trained]
        for number, update in enumerate(updates):
            circle.fold(circle.update(update, number + 1))
        found = circle.opened()
        mean = np.average(trained, axis=0, weights=[1, 2, 3])
        assert np.abs(found["w"] - mean).max() < error
        for each in ("complex", "running_mean", "single"):
            assert np.abs(found[each] - start[each]).max() < error
        for each in ("count", "flag", "half", "empty"):
            assert np.array_equal(found[each], start[each])
        assert {each: tensor.dtype for each, tensor in found.items()} == {k: v.dtype for k, v in start.items()}


def test_integers_have_the_rounded_mean() -> None:
    circle = Circle({"count": np.array([0, 0], np.int32)})
    for examples, value in ((1, 5), (3, 8)):
        circle.fold(circle.update({"count": np.array([value, -value], np.int32)}, examples))
    assert circle.opened()["count"].tolist() == [7, -7]  # 7.25


def test_examples_are_bounded_by_the_strategy() -> None:
    circle = Circle(FEW, max_examples=10)
    circle.fold(circle.update({"w": np.full(3, 1, np.float32)}, 10))
    update = circle.update({"w": np.full(3, 4, np.float32)}, 10_000)
    assert update.num_examples == 10
    circle.fold(update)
    assert circle.opened()["w"] == pytest.approx(2.5)


def test_reports_travel_as_they_are() -> None:
    report = Report(3, {"accuracy": 0.5})
    circle = Circle(FEW)
    assert circle.client.begin(circle.task).mask(report) is report


@pytest.mark.parametrize(
    ("update", "examples", "why"),
    [
        ({"w": np.array([1, np.nan, 1], np.float32)}, 1, "'w' holds NaN or infinity"),
        ({"w": np.array([1, np.inf, 1], np.float32)}, 1, "'w' holds NaN or infinity"),
        ({"w": np.ones(4, np.float32)}, 1, r"'w' is float32 of shape \(4,\); expected float32 of shape \(3,\)"),
        ({"v": np.ones(3, np.float32)}, 1, "'w' is missing"),
        ({"w": np.full(3, 2.0**21, np.float32)}, 1, "'w' holds more than 1.05e.06, whose neighbours in a ciphertext"),
        ({"w": np.full(3, 1000, np.float32)}, 1400, "'w' times 1400 examples is beyond the parameters' range"),
        ({"w": np.full(3, 1, np.float32)}, 10**7, "the number of 10000000 examples is beyond"),
        ({"w": Packed("float32", (3,), "float32", 3, False, np.zeros(12, np.uint8))}, 1, "packed by a compression"),
    ],
    ids=["nan", "infinity", "shape", "name", "large", "range", "examples", "packed"],
)
def test_a_client_refuses_what_no_sum_can_hold(update: dict[str, Any], examples: int, why: str) -> None:
    with pytest.raises(InvalidUpdate, match=why):
        Circle(FEW).update(update, examples)


def test_a_client_refuses_extra_values() -> None:
    circle = Circle(FEW)
    with pytest.raises(InvalidUpdate, match="extra: c; expected none"):
        circle.client.begin(circle.task).mask(Update(FEW, 1, extra={"c": np.ones(1)}))


def test_a_client_refuses_the_terms_of_another_key() -> None:
    with pytest.raises(InvalidUpdate, match="give both the files of one call of fl secure-key"):
        Encrypting(files(1)[0]).begin(Circle(FEW).task)


@pytest.mark.parametrize("value", [0, -1, True, "3", None])
def test_a_client_refuses_terms_that_are_not_valid(value: object) -> None:
    task = Circle(FEW).task
    task = with_fields(task, secure={"homomorphic": {**task.secure["homomorphic"], "clients": value}})
    with pytest.raises(InvalidUpdate, match="terms of homomorphic encryption are not valid"):
        Circle(FEW).client.begin(task)


def test_a_client_refuses_a_sum_of_other_weights() -> None:
    circle = Circle(FEW)
    circle.fold(circle.update(FEW, 5))
    circle.opened()
    for weight, why in ((4, "the sum of the weights is wrong"), (0, "the sum of 0 examples"), (2**60, "the sum of")):
        header = Header.load(circle.model[HEADER])._replace(weight=weight)
        with pytest.raises(InvalidUpdate, match=why):
            circle.client.model({**circle.model, HEADER: header.dump()})


def test_a_client_refuses_a_model_of_another_key() -> None:
    circle = Circle(FEW)
    circle.fold(circle.update(FEW, 5))
    circle.opened()
    with pytest.raises(InvalidUpdate, match="the model is encrypted for the key"):
        Encrypting(files(1)[0]).model(circle.model)
    forged = Header.load(circle.model[HEADER])._replace(key=Encrypting(files(1)[0])._key.key)
    with pytest.raises(InvalidUpdate, match="the sum of the weights is wrong"):
        Encrypting(files(1)[0]).model({**circle.model, HEADER: forged.dump()})


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"[]", b"{}", b"[" * 10**5),
        b'{"key": "", "weight": 1, "tensors": {"w": [[3], "object", false]}}',
        b'{"key": "", "weight": 1, "tensors": {"w": [[3], "bfloat16", true]}}',
        b'{"key": "", "weight": 1, "tensors": {"w": [[-3], "float32", false]}}',
    ],
)
def test_a_client_refuses_a_header_that_is_none(header: bytes) -> None:
    model = {CIPHERTEXTS: np.zeros(3, np.uint8), HEADER: np.frombuffer(header, np.uint8)}
    with pytest.raises(InvalidUpdate, match="the header of a model of ciphertexts cannot be read"):
        Circle(FEW).client.model(model)


def test_a_refusal_says_nothing_of_what_was_decrypted() -> None:
    """A server that lies sends a part of one client's update as the weights, and reads the reason."""
    model = {"w": np.full(3000, 0.28125, np.float32)}
    circle = Circle(model)
    _, part = split(circle.client._key, payload(circle.update(model, 1)), circle.sum._header.specs)
    found = bytearray()
    join(found, bytes(part))
    header = Header(circle.client._key.key, 1, {"w": Spec((3,), "float32", None)}).dump()
    with pytest.raises(InvalidUpdate, match="weights is wrong") as refused:
        circle.client.model({CIPHERTEXTS: np.frombuffer(found, np.uint8), HEADER: header})
    assert "0.28" not in str(refused.value)
    client = circle.client.begin(with_fields(circle.task, secure=dict(circle.sum.terms(10**4))))
    with pytest.raises(InvalidUpdate, match="'w' times 1 examples is beyond") as refused:
        client.mask(Update({"w": model["w"] * np.float32(1e5)}, 1))
    assert "2.81" not in str(refused.value)


def test_a_header_of_a_huge_model_takes_no_memory() -> None:
    circle = Circle(FEW)
    circle.fold(circle.update(FEW, 5))
    circle.opened()
    specs = {"w": Spec((10**7, 10**6), "float32", None)}
    header = Header.load(circle.model[HEADER])._replace(specs=specs)
    with pytest.raises(InvalidUpdate, match="bytes of ciphertexts; expected 4882812501 of this model"):
        circle.client.model({**circle.model, HEADER: header.dump()})


def test_a_client_gives_no_statistics_in_plain() -> None:
    """A server may send the terms with any task."""
    circle = Circle(FEW)
    task = with_fields(circle.task, job=Job(1, 1, "statistics"))
    with pytest.raises(InvalidUpdate, match="gives no statistics of its data"):
        circle.client.begin(task)


def test_the_server_refuses_updates_of_other_names() -> None:
    circle = Circle(FEW)
    for model in (FEW, {}, {f"{CIPHERTEXTS} 00": payload(circle.update(FEW, 1))}):
        with pytest.raises(InvalidUpdate, match="the client has another key, or none"):
            circle.fold(Update(model, 1))


def test_the_server_refuses_ciphertexts_of_another_length() -> None:
    circle = Circle(MODEL, "ciber-cafe")
    update = circle.update(MODEL, 1)
    found = payload(update).tobytes()
    for wrong in (b"", found[:-1], found + b"\0", found[: len(found) // 2], struct.pack("<I", 2**31) + found):
        with pytest.raises(InvalidUpdate, match=r"bytes of ciphertexts; expected 3 of this model, each whole"):
            circle.fold(with_payload(update, wrong))
    circle.fold(update)
    assert np.abs(circle.opened()["w"] - MODEL["w"]).max() < 1e-6


def test_the_server_refuses_ciphertexts_of_other_parameters() -> None:
    other = Circle(FEW, "ciber-cafe")
    circle = Circle(FEW)
    with pytest.raises(InvalidUpdate, match=r"a ciphertext of \d+ bytes; expected|bytes of ciphertexts; expected"):
        circle.fold(with_payload(circle.update(FEW, 1), payload(other.update(FEW, 1)).tobytes()))


def test_a_refused_update_leaves_the_sum_as_it_was() -> None:
    circle = Circle(MODEL, "ciber-cafe")
    circle.fold(circle.update(MODEL, 1))
    update = circle.update({**MODEL, "w": MODEL["w"] + 1}, 5)
    with pytest.raises(InvalidUpdate):
        circle.fold(with_payload(update, payload(update).tobytes()[:-1]))
    circle.fold(circle.update(MODEL, 2))
    assert np.abs(circle.opened()["w"] - MODEL["w"]).max() < 1e-6
