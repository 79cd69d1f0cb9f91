"""Clients choose the names of their metrics: whatever they are, every place to which reports go has all the numbers.

The plots are in test_plots.py, the terminal in test_report.py and test_progress.py.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

import fl
from fl.callbacks.jsonl import read
from tests.fl.federation import A

HOSTILE = [
    *("", " ", ".", "..", "../../x", "/a", "a/", "a//b", "accuracy/x", "a\\b"),
    *("a;b", "a,b", 'a"b', "a\\nb", "%s {0}", "<script>", "$(reboot)", "-rf", "__name__", "_hidden"),
    *(r"$\frac{$", "$", r"\input{/etc/passwd}", "[red]x[/]", "[/nope]", ":pile_of_poo:"),
    *("a" + "\u0301" * 99, "\u3164", "\u05d0\u05d1", "准确率", "\U0001f4a9", "x" * 100),
    *("loss 0.001, 99 failed, accuracy", "# HELP fl_round 7", "null", "NaN", "time", "round"),
]
METRICS = {"accuracy": 0.5, **{name: float(number) for number, name in enumerate(HOSTILE, 1)}}
TOO_LONG = "server_" + "x" * 300  # of the user's `measure`: MLflow refuses it


def report(**evaluation: float) -> fl.RoundReport:
    return fl.RoundReport(1, (A,), {}, fl.Report(1, METRICS).metrics, evaluation, 1.0, 10, 20)


def json_lines(folder: Path) -> dict[str, float]:
    fl.JsonLines(folder / "r").round_ends(report(), {})
    found: dict[str, float] = read(folder / "r")[0]["metrics"]
    return found


def tensorboard(folder: Path) -> dict[str, float]:
    events: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with fl.TensorBoard(folder) as callback:
        callback.round_ends(report(), {})
    found: Any = events.EventAccumulator(str(folder)).Reload()
    return {name: found.Scalars(f"metrics/{name}")[0].value for name in METRICS}


def prometheus(folder: Path) -> dict[str, float]:
    from prometheus_client.parser import text_string_to_metric_families as families

    with fl.Prometheus(0) as callback:
        callback.round_ends(report(), {})
        with urlopen(f"http://127.0.0.1:{callback.port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    found = [sample for family in families(text) for sample in family.samples]
    return {sample.labels["name"]: sample.value for sample in found if sample.name == "fl_metrics"}


def mlflow(folder: Path) -> dict[str, float]:
    environment = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    code = "from tests.fl.callbacks.test_names import send_to_mlflow as send; import sys; send(sys.argv[1])"
    command = [sys.executable, "-c", code, (folder / "runs").as_uri()]
    done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60)
    assert done.stderr.count(f"refuses evaluation/{TOO_LONG}".encode()) == 1
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["evaluation/server_accuracy"] == 0.75
    return {name.removeprefix("metrics/"): found[name] for name in found if name.startswith("metrics/")}


def send_to_mlflow(uri: str) -> None:
    """Send a report twice, and print what MLflow has of it. In a process of its own."""
    from mlflow import MlflowClient

    with fl.MLflow(uri) as callback:
        for _ in range(2):
            callback.round_ends(report(server_accuracy=0.75, **{TOO_LONG: 1.0}), {})
    client: Any = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("federation").experiment_id])
    print(json.dumps(run.data.metrics))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "backend"),
    [
        ("json", json_lines),
        ("tensorboard", tensorboard),
        ("prometheus_client", prometheus),
        ("mlflow", mlflow),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_number_arrives_under_a_name_of_its_own(
    tmp_path: Path, package: str, backend: Callable[[Path], dict[str, float]]
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    found = backend(tmp_path)
    assert found["accuracy"] == 0.5
    assert sorted(found.values()) == sorted(METRICS.values())


@pytest.mark.parametrize(
    ("package", "backend"), [("tensorboard", fl.TensorBoard), ("prometheus_client", fl.Prometheus)]
)
def test_values_that_are_not_finite_arrive_beside_the_others(
    tmp_path: Path, package: str, backend: Callable[..., Any]
) -> None:
    pytest.importorskip(package)
    metrics = {"auc": float("nan"), "loss": 0.5, "low": float("-inf"), "confusion": np.eye(2)}
    with backend(*[tmp_path] if backend is fl.TensorBoard else [0]) as callback:
        callback.round_ends(fl.RoundReport(1, (A,), {}, metrics, {}, 1.0, 10, 20), {})
        if backend is fl.Prometheus:
            with urlopen(f"http://127.0.0.1:{callback.port}/metrics", timeout=30) as answer:
                text = answer.read().decode()
            assert 'fl_metrics{name="auc"} NaN' in text
            assert 'fl_metrics{name="loss"} 0.5' in text
            assert "confusion" not in text
