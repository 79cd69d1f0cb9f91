"""Statistics of devices: the child computes them with the device's settings and minimum, and the agent masks them."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edge
import fl
from netq.errors import InvalidOption
from tests.edge.test_agent import HERE, SOON, config, server

IDS = [uuid.UUID(int=number) for number in range(1, 4)]
ASKED = {"age": fl.Column(0, 100, 10), "settings": fl.Column(0, 10)}


def asked(*devices: dict[str, Any], **settings: Any) -> fl.StatisticsReport:
    strategy = fl.FedAvg(max_examples="equal")
    with server(strategy=strategy, wait=len(devices), **settings) as aggregator, ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(edge.run, replace(config(aggregator, **its), id=id))
            for id, its in zip(IDS, devices, strict=False)
        ]
        report = aggregator.statistics_of(ASKED)
        assert len(aggregator.round().clients) == len(devices)
        aggregator.close()
        for run in runs:
            run.result(SOON)
    return report


def device(step: float, **options: Any) -> dict[str, Any]:
    return {"columns": f"{HERE}:columns", "settings": {"step": step}, **options}


@pytest.mark.slow
def test_devices_give_the_same_under_masks() -> None:
    devices = [device(1), device(2), device(3, min_count=200)]
    plain, masked = asked(*devices), asked(*devices, secure=fl.SecureAggregation())
    assert plain.plain()["columns"] == masked.plain()["columns"]
    age = plain.columns["age"]
    assert (age.clients, age.count) == (2, 200)
    assert plain.columns["settings"].mean == pytest.approx(1.5)
    assert age.histogram.tolist() == [20] * 10
    assert plain.withheld[IDS[2]]["age"] == "it has fewer than 200 values from 0 to 100"


@pytest.mark.slow
def test_a_device_without_columns_says_so(tmp_path: Path) -> None:
    report = asked({"settings": {"step": 1}, "state": tmp_path / "state"})
    assert (
        str(report.failures[IDS[0]]) == "this client has no function `columns`, so it gives no statistics of its data"
    )


def test_the_file_names_the_function_and_the_minimum(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    least = '[server]\nhost = "10.0.0.1"\nport = 1\n[client]\n'
    path.write_text(least + 'columns = "numpy:mean"\nmin_count = 20\n')
    found = edge.Config.load(path)
    assert (found.columns, found.min_count) == ("numpy:mean", 20)
    path.write_text(least)
    assert (edge.Config.load(path).columns, edge.Config.load(path).min_count) == (None, 10)
    for line, error in (
        ("min_count = 0", "client.min_count: 0; expected a whole number, 1 or more"),
        ("min_count = true", "client.min_count: True; expected a whole number, 1 or more"),
        ("columns = 3", 'client.columns: 3; expected "module:function", as in "farm.training:columns"'),
    ):
        path.write_text(f"{least}{line}\n")
        with pytest.raises(InvalidOption) as caught:
            edge.Config.load(path)
        assert str(caught.value) == f"{path}: {error}"
