"""Devices under secure aggregation: the agent has the keys, and its child trains as always."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
import fl
from edge.outgoing import FAILED
from edge.policy import Policy
from tests.edge.test_agent import SOON, config, server

IDS = [uuid.UUID(int=number) for number in range(1, 5)]
SECURE = fl.SecureAggregation(metrics=("round",))


def federate(devices: Sequence[dict[str, Any]], rounds: int, **settings: Any) -> tuple[Any, list[fl.RoundReport]]:
    """Return the model after some rounds of devices with these settings, and the reports."""
    strategy = fl.FedAvg(max_examples="equal")
    with server(strategy=strategy, wait=len(devices), **settings) as aggregator, ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(edge.run, replace(config(aggregator, **its), id=id))
            for id, its in zip(IDS, devices, strict=False)
        ]
        reports = list(aggregator.rounds(rounds))
        aggregator.close()
        for run in runs:
            run.result(SOON)
    return aggregator.model["w"], reports


def steps(*numbers: float) -> list[dict[str, Any]]:
    return [{"settings": {"step": number}} for number in numbers]


def test_devices_send_vectors_under_masks() -> None:
    plain, _ = federate(steps(0.1, 0.2, 0.6), 2)
    masked, reports = federate(steps(0.1, 0.2, 0.6), 2, secure=SECURE)
    assert masked == pytest.approx(plain, abs=1e-5)
    assert plain.any()
    assert [(report.metrics, report.masked) for report in reports] == [
        ({"round": pytest.approx(number)}, fl.MaskedSum(3, 0.0)) for number in (1, 2)
    ]


def test_a_device_that_wants_masks_trains_for_no_server_without(tmp_path: Path) -> None:
    wants = {"secure": fl.SecurePolicy(required=True), "state": tmp_path / "state"}
    _, [report] = federate([*steps(0.1), wants], 1)
    assert report.clients == (IDS[0],)
    assert str(report.failures[IDS[1]]) == (
        "this client answers under secure aggregation only, and the server does not use it"
    )
    assert not (tmp_path / "state" / "record").exists()  # it was not even trained


def test_a_device_that_wants_certificates_takes_no_part_without() -> None:
    devices = [*steps(0.1, 0.2, 0.6), {"secure": fl.SecurePolicy(certificates=True)}]
    _, [report] = federate(devices, 1, secure=SECURE)
    assert sorted(report.clients) == IDS[:3]
    assert "takes part with certificates only" in str(report.failures[IDS[3]])


def test_a_policy_keeps_the_reason_why_masks_do_not_cover_an_update() -> None:
    """The training has chosen the name of a tensor, and the reason has it."""
    smuggles = {"train": "smuggles", "settings": {"how": "tensor"}, "policy": Policy(tensors=["*"], metrics=["*"])}
    _, [report] = federate([*steps(0.1, 0.2, 0.6), smuggles], 1, secure=SECURE)
    assert sorted(report.clients) == IDS[:3]
    assert str(report.failures[IDS[3]]) == FAILED


def test_a_device_whose_training_fails_is_left_out_of_the_sum() -> None:
    devices = [*steps(0.1, 0.2, 0.6), {"train": "tells"}]
    model, [report] = federate(devices, 1, secure=SECURE)
    assert sorted(report.clients) == IDS[:3]
    assert list(report.failures) == [IDS[3]]
    assert np.isfinite(model).all()
