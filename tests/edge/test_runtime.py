"""edge.run: the device's settings join what the server says, and the run ends with the federation."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
import fl
import netq

SOON = 10.0  # seconds in which all happens that does happen
ID = uuid.UUID(int=5)
CONNECTION = netq.ConnectionOptions(retry_min=0.01, retry_max=0.1, linger=0.5)


@contextmanager
def server(**settings: Any) -> Iterator[fl.Server]:
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0), connection=CONNECTION)
    model = {"w": np.zeros(3, np.float32)}
    with fl.Server(model, options, min_clients=1, deadline=SOON, **settings) as made:
        yield made


@contextmanager
def running(function: Callable[..., Any], *args: Any) -> Iterator[None]:
    """In a thread; what it raises is raised here."""
    with ThreadPoolExecutor() as pool:
        run = pool.submit(function, *args)
        yield
        run.result(SOON)


def train(model: Any, config: Mapping[str, Any]) -> fl.Update:
    return fl.Update({"w": model["w"] + np.float32(config["step"])}, 1, {"round": config["round"]})


def evaluate(model: Any, config: Mapping[str, Any]) -> fl.Report:
    return fl.Report(1, {"accuracy": config["step"] / 4})


def config(netloc: netq.NetworkLocation, **settings: Any) -> edge.Config:
    return edge.Config(netloc, id=ID, connection=CONNECTION, settings=settings)


def test_device_takes_part_under_its_id() -> None:
    with server(evaluate=True) as aggregator, running(edge.run, train, config(aggregator.netloc, step=2), evaluate):
        reports = list(aggregator.rounds(3))
        assert [report.clients for report in reports] == [(ID,)] * 3
        assert [report.metrics for report in reports] == [{"round": 1.0}, {"round": 2.0}, {"round": 3.0}]
        assert [report.evaluation for report in reports] == [{"accuracy": 0.5}] * 3
        assert aggregator.model["w"].tolist() == [6, 6, 6]
        aggregator.close()


def test_device_settings_override_the_server_config() -> None:
    told: list[Mapping[str, Any]] = []

    def listens(model: Any, task: Mapping[str, Any]) -> fl.Update:
        told.append(task)
        return fl.Update(model, 1)

    def reports(model: Any, task: Mapping[str, Any]) -> fl.Report:
        told.append(task)
        return fl.Report(1)

    with server(evaluate=True, config={"rate": 0.1, "batch": 32}) as aggregator:
        device = config(aggregator.netloc, batch=8, field={"name": "north"})
        with running(edge.run, listens, device, reports):
            assert aggregator.round().failures == {}
            aggregator.close()
    assert told == [{"round": 1, "rate": 0.1, "batch": 8, "field": {"name": "north"}}] * 2
    assert device.settings == {"batch": 8, "field": {"name": "north"}}


def test_settings_are_copied_for_each_round() -> None:
    def spoils(model: Any, task: Any) -> fl.Update:
        assert "mine" not in task
        task["mine"] = True
        return fl.Update(model, 1)

    with server() as aggregator, running(edge.run, spoils, config(aggregator.netloc, batch=8)):
        assert [report.failures for report in aggregator.rounds(2)] == [{}, {}]
        aggregator.close()


def test_device_without_evaluate_trains() -> None:
    with server(evaluate=True) as aggregator, running(edge.run, train, config(aggregator.netloc, step=1)):
        report = aggregator.round()
        assert (report.clients, report.failures, report.evaluation) == ((ID,), {}, {})
        aggregator.close()


def test_failing_device_is_reported_and_continues() -> None:
    attempts = itertools.count(1)

    def stumbles(model: Any, task: Mapping[str, Any]) -> fl.Update:
        if next(attempts) == 1:
            raise OSError("the sensor does not answer")
        return train(model, task)

    with server() as aggregator, running(edge.run, stumbles, config(aggregator.netloc, step=1)):
        refusal = aggregator.round().failures[ID]
        assert refusal == fl.ClientFailure(fl.FailureKind.FAILED, "OSError: the sensor does not answer")
        assert aggregator.round().clients == (ID,)
        aggregator.close()


def test_config_file_is_enough_for_a_device(tmp_path: Path) -> None:
    with server() as aggregator:
        path = tmp_path / "device.toml"
        path.write_text(f"""
            [server]
            host = "127.0.0.1"
            port = {aggregator.netloc.port}
            [client]
            id = "{ID}"
            [settings]
            step = 4
        """)
        with running(edge.run, train, edge.Config.load(path)):
            assert aggregator.round().clients == (ID,)
            assert aggregator.model["w"].tolist() == [4, 4, 4]
            aggregator.close()


def test_wrong_certificate_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "trusted.pem"
    path.write_text("not PEM")
    device = edge.Config(netq.NetworkLocation("127.0.0.1", 9), security=netq.SecurityOptions(certificate=path))
    with pytest.raises(netq.SecurityError):
        edge.run(train, device)
