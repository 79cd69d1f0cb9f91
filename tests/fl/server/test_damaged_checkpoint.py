"""A damaged checkpoint raises CheckpointError and nothing else: bytes that were changed or cut, and values of a wrong
type behind a right checksum.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fl
import netq
from fl.server.checkpoint import Checkpoint
from fl.tensors.serialization import serialization

LOCAL = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
W = np.zeros(3, np.float32)
STATES: dict[str, tuple[Callable[[], fl.Strategy], dict[str, Any]]] = {
    "FedAvg": (fl.FedAvg, {}),
    "FedAvgM": (fl.FedAvgM, {"velocity": {"w": W}}),
    "FedAdam": (fl.FedAdam, {"first": {"w": W}, "second": {"w": W}}),
    "Scaffold": (fl.Scaffold, {"control": {"w": W}}),
    "FedMedian": (fl.FedMedian, {}),
    "FedBuff": (fl.FedBuff, {}),
}
WRONG: list[Any] = [
    *(None, True, -1, 0, 2**70, 1.5, "x", "", b"", b"1234567890123456", [], [1], (), {}, {"a": 1}, {1: 2}, set()),
    *(np.zeros((2, 2), np.int8), np.float32(1), np.array([np.nan]), torch.zeros(3), {"w": "x"}, {"w": np.zeros(5)}),
    "FedAvg\x1b[31m",
]


def state(name: str) -> dict[str, Any]:
    strategy = {"name": name, "state": STATES[name][1]}
    model = {"w": W, "n": np.zeros((), np.int64)}
    standing = {"turn": 9, "records": {"00000000-0000-0000-0000-000000000001": [7, 1.5, 4, 4, 8, 13]}}
    return {
        "federation": bytes(16),
        "number": 3,
        "is_over": False,
        "standings": {"train": standing, "evaluate": {"turn": 0, "records": {}}},
        "model": model,
        "roles": {"w": "trained", "n": "averaged", "head": "local"},
        "strategy": strategy,
        "privacy": {},
    }


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))


def changed(value: Any, path: tuple[str, ...], new: Any) -> Any:
    """Return the value with another at this place; with `...`, without it."""
    if not path:
        return new
    first, *others = path
    if not others and new is ...:
        return {key: each for key, each in value.items() if key != first}
    return {**value, first: changed(value[first], tuple(others), new)}


def write(path: Path, body: bytes) -> None:
    """Write a body with a right checksum."""
    whole = struct.pack("<8sQ", b"NETQFL01", len(body)) + body
    path.write_bytes(whole + hashlib.blake2b(whole, digest_size=32).digest())


def resumes(path: Path, strategy: fl.Strategy) -> bool:
    """Return whether a server resumes. Any error but CheckpointError comes out of here."""
    try:
        fl.Server.resume(path, LOCAL, strategy=strategy).close(0.0)
    except fl.CheckpointError as error:
        text = str(error)
    else:
        return True
    assert str(path) in text
    assert text.isprintable()
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", STATES)
def test_values_of_a_wrong_type_are_refused(tmp_path: Path, name: str) -> None:
    path, right, make = tmp_path / "c", state(name), STATES[name][0]
    dump = serialization().dump
    write(path, bytes(dump(right)))
    assert resumes(path, make())
    refused = 0
    for place in places(right):
        if name != "FedAdam" and place[:1] != ("strategy",):
            continue  # what is not the strategy's is the same for each
        for wrong in (*WRONG, *([...] if place else [])):
            write(path, bytes(dump(changed(right, place, wrong))))
            refused += not resumes(path, make())
    assert refused > (350 if name == "FedAdam" else 50)


@pytest.mark.slow
def test_changed_bytes_behind_a_right_checksum_are_refused(tmp_path: Path) -> None:
    path, choice = tmp_path / "c", random.Random(1)
    body = bytes(serialization().dump(state("FedAdam")))
    refused = 0
    for _ in range(1000):
        damaged = bytearray(body)
        for _ in range(choice.randint(1, 3)):
            damaged[choice.randrange(len(body))] = choice.randrange(256)
        write(path, bytes(damaged))
        refused += not resumes(path, fl.FedAdam())
    assert refused > 500
    for size in range(0, len(body), 3):
        write(path, body[:size])
        assert not resumes(path, fl.FedAdam())


def test_each_changed_or_missing_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c"
    checkpoint = Checkpoint(path)
    checkpoint.save({"number": 1})
    checkpoint.close()
    whole = path.read_bytes()
    for at in range(len(whole)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :], whole + whole[:at]):
            if damaged != whole:
                path.write_bytes(damaged)
                assert not resumes(path, fl.FedAvg())
