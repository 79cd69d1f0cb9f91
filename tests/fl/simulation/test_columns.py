"""Sequences and mappings by client: as tuples and dicts, in some bytes a client."""

from __future__ import annotations

import pickle
import tracemalloc
import uuid
from array import array
from typing import Any

import numpy as np
import pytest

from fl.simulation.columns import ByClient, Ids, Metrics

A, B, C = (uuid.UUID(int=number) for number in (7, 0, 3))


def test_ids_are_as_a_tuple() -> None:
    ids = Ids([7, 0, 3])
    assert list(ids) == [A, B, C]
    assert (ids[0], ids[-1], len(ids), bool(ids), bool(Ids([]))) == (A, C, 3, True, False)
    assert ids == (A, B, C) == tuple(ids)
    assert ids != (B, A, C)
    assert ids[1:] == Ids([0, 3])
    assert A in ids
    assert uuid.uuid4() not in ids
    assert repr(ids) == repr((A, B, C))
    assert pickle.loads(pickle.dumps(ids)) == ids


def test_by_client_is_as_a_dict() -> None:
    found = ByClient(Ids([7, 0, 3]), array("q", [10, 20, 30]))
    assert dict(found) == {A: 10, B: 20, C: 30} == found
    assert found[B] == 20
    assert found.get(uuid.uuid4()) is None
    assert "7" not in found
    with pytest.raises(KeyError):
        found[uuid.UUID(int=1)]
    assert repr(found) == repr({A: 10, B: 20, C: 30})
    assert pickle.loads(pickle.dumps(found)) == found


def test_metrics_are_those_of_each_client() -> None:
    each: list[dict[str, Any]] = [
        {"loss": 0.5, "auc": 1.0},
        {"loss": 0.25},
        {"loss": 2.0, "auc": 3.0, "matrix": np.eye(2)},
    ]
    metrics = Metrics(each)
    assert [list(found) for found in metrics] == [["loss", "auc"], ["loss"], ["loss", "auc", "matrix"]]
    assert [found["loss"] for found in metrics] == [0.5, 0.25, 2.0]
    assert metrics[2]["matrix"] is each[2]["matrix"]
    assert (metrics[-1]["auc"], len(metrics), len(metrics[1:])) == (3.0, 3, 2)
    with pytest.raises(IndexError):
        metrics[3]
    assert list(Metrics([])) == []


def test_a_report_of_many_clients_takes_some_bytes_each() -> None:
    count = 20_000
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    ids = Ids(range(count))
    kept = [ids, ByClient(ids, array("q", range(count))), Metrics([{"loss": 1.5}] * count)]
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(kept) == 3
    assert (after - before) / count < 40
