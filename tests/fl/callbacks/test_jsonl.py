"""What is kept of rounds: the JSON lines, and what TensorBoard, MLflow and Prometheus have, read back from them."""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import math
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

import fl
from fl.callbacks.jsonl import JsonLines, Measured, name_of, read, record, scalars
from fl.callbacks.mlflow import MLflow
from fl.callbacks.prometheus import Prometheus
from fl.callbacks.tensorboard import TensorBoard
from netq.errors import AddressError, InvalidOption
from netq.testing.log import LogRecorder
from tests.fl.aggregation.test_update_store import disk_of
from tests.fl.federation import A, B, C, Federation, filled, gives, zeros

LATE, LOST = (
    fl.ClientFailure(fl.FailureKind.LATE, "no answer within 1 s (deadline)"),
    fl.ClientFailure(fl.FailureKind.LOST, "it has gone"),
)


def report(number: int = 1, **changes: Any) -> fl.RoundReport:
    facts: dict[str, Any] = {
        "clients": (A,),
        "failures": {B: LATE, C: LOST},
        "metrics": {"loss": 0.5},
        "evaluation": {"accuracy": 0.75},
        "seconds": 2.0,
        "bytes_in": 1000,
        "bytes_out": 3000,
        "staleness": {A: 2},
        "evaluation_failures": {A: LOST},
        "skipped": {B: "no data"},
    }
    return fl.RoundReport(number=number, **{**facts, **changes})


def installed(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


def test_record_has_the_whole_report() -> None:
    found = record(report())
    assert json.loads(json.dumps(found)) == found
    assert found == {
        "round": 1,
        "clients": [str(A)],
        "failures": {
            str(B): {"why": "LATE", "reason": "no answer within 1 s (deadline)"},
            str(C): {"why": "LOST", "reason": "it has gone"},
        },
        "evaluation_failures": {str(A): {"why": "LOST", "reason": "it has gone"}},
        "attempt": 1,
        "suspended": [],
        "names": {},
        "masked": None,
        "privacy": None,
        "staleness": {str(A): 2},
        "metrics": {"loss": 0.5},
        "evaluation": {"accuracy": 0.75},
        "skipped": {str(B): "no data"},
        "evaluation_skipped": {},
        "not_finite": {},
        "evaluation_not_finite": {},
        "left_out": {},
        "evaluation_left_out": {},
        "shares": {},
        "seconds": 2.0,
        "bytes_in": 1000,
        "bytes_out": 3000,
    }


def test_record_has_the_metrics_of_each_client_on_demand(tmp_path: Path) -> None:
    of_a = {A: {"loss": 0.25, "strange": float("nan")}}
    not_finite: Any = {"not_finite": {"strange": 1}, "evaluation_not_finite": {"accuracy": 1}}
    found = record(
        report(client_metrics=of_a, client_evaluation={A: {"accuracy": 1.0}}, **not_finite), client_metrics=True
    )
    assert (found["not_finite"], found["evaluation_not_finite"]) == ({"strange": 1}, {"accuracy": 1})
    assert found["client_metrics"] == {str(A): {"loss": 0.25, "strange": None}}
    assert found["client_evaluation"] == {str(A): {"accuracy": 1.0}}
    examples = record(report(num_examples={A: 5}, evaluation_examples={A: 2}), client_metrics=True)
    assert (examples["num_examples"], examples["evaluation_examples"]) == ({str(A): 5}, {str(A): 2})
    for client_metrics in (False, True):
        path = tmp_path / f"{client_metrics}.jsonl"
        JsonLines(path, client_metrics=client_metrics).round_ends(report(client_metrics=of_a), {})
        assert ("client_metrics" in read(path)[0]) is client_metrics


def test_a_line_before_the_rounds_tells_how_to_repeat_them(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    with Federation(
        strategy=fl.FedAvg(seed=7), config={"lr": 0.1, "w": np.zeros(2)}, callbacks=[JsonLines(path)]
    ) as it:
        for client in (A, B):
            it.join(client, lambda model, config: fl.Update(zeros(), 1))
        for _ in range(2):
            it.round(2)
    begin, *rounds = [json.loads(line) for line in path.read_text().splitlines()]
    assert begin["begin"]["strategy"] == "FedAvg"
    assert (begin["begin"]["seed"], begin["begin"]["rounds_done"], begin["begin"]["min_clients"]) == (7, 0, 2)
    assert begin["begin"]["config"] == {"lr": 0.1, "w": "<ndarray>"}
    assert set(begin["begin"]["versions"]) >= {"python", "numpy", "netq-fl"}
    assert [each["round"] for each in rounds] == [1, 2]
    assert [each["round"] for each in read(path)] == [1, 2]


def test_scalars_count_failures_by_kind() -> None:
    found = scalars(report(failures={A: LATE, B: LATE, C: LOST}))
    assert found["failures/late"] == 2
    assert found["failures/lost"] == 1
    assert {name for name in found if name.startswith("failures/")} == {
        f"failures/{why.name.lower()}" for why in fl.FailureKind
    }
    assert (found["evaluation_failures/lost"], found["evaluation_failures/late"]) == (1, 0)
    assert (found["skipped"], found["evaluation_skipped"]) == (1, 0)
    assert found["evaluation/accuracy"] == 0.75
    assert found["metrics/loss"] == 0.5
    assert (found["clients"], found["seconds"], found["bytes/in"], found["bytes/out"]) == (1, 2.0, 1000, 3000)


def test_json_lines_appends_to_an_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    JsonLines(path).round_ends(report(1), zeros())
    JsonLines(path).round_ends(report(2), zeros())
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert first.pop("time") <= second.pop("time")
    assert [first, second] == [record(report(1)), record(report(2))]


def test_line_is_written_when_the_round_ends(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    with Federation(callbacks=[JsonLines(path)], min_clients=1) as federation:
        federation.join(A, gives(1, loss=0.25))
        reports = [federation.round(1)]
        assert [round["round"] for round in read(path)] == [1]
        reports.append(federation.round(1))
    found = read(path)
    assert all(round.pop("time") > 0 for round in found)
    assert found == [record(report) for report in reports]


def test_infinite_numbers_are_written_as_null(tmp_path: Path) -> None:
    JsonLines(tmp_path / "r").round_ends(report(evaluation={"server_loss": math.nan, "sum": math.inf}), zeros())
    assert read(tmp_path / "r")[0]["evaluation"] == {"server_loss": None, "sum": None}


def test_incomplete_line_does_not_damage_the_next(tmp_path: Path, log: LogRecorder) -> None:
    path = tmp_path / "rounds.jsonl"
    JsonLines(path).round_ends(report(1), zeros())
    path.write_bytes(path.read_bytes() + b'{"round": 2, "cli')
    JsonLines(path).round_ends(report(2), zeros())
    assert [round["round"] for round in read(path)] == [1, 2]
    assert log.having(f"{path}: no round in line 2; left out")


def test_repeated_round_replaces_later_ones(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    for number, seconds in ((1, 1.0), (2, 2.0), (3, 3.0), (2, 4.0), (3, 5.0)):
        JsonLines(path).round_ends(report(number, seconds=seconds), zeros())
    assert [(round["round"], round["seconds"]) for round in read(path)] == [(1, 1.0), (2, 4.0), (3, 5.0)]


def test_full_disk_costs_no_later_line(tmp_path: Path, log: LogRecorder) -> None:
    path = tmp_path / "rounds.jsonl"
    callback = JsonLines(path)
    callback.round_ends(report(1), zeros())
    for number in (2, 3):
        with disk_of(path.stat().st_size + 20), pytest.raises(OSError, match="too large"):
            callback.round_ends(report(number), zeros())
    callback.round_ends(report(4), zeros())
    callback.round_ends(report(5), zeros())
    assert [round["round"] for round in read(path)] == [1, 4, 5]
    assert log.having(f"{path}: no round in line 2, 3; left out")


OTHERS = ["", "7", "[]", '{"round": 1}', '{"round": "1", "metrics": {}}', "\x00\xff"]


def test_other_lines_are_skipped_with_one_warning(tmp_path: Path, log: LogRecorder) -> None:
    path = tmp_path / "r"
    path.write_text("".join(f"{line}\n" for line in OTHERS))
    JsonLines(path).round_ends(report(1), zeros())
    assert [round["round"] for round in read(path)] == [1]
    assert log.having("no round") == [f"{path}: no round in line 1, 2, 3, 4, 5, 6; left out"]


@pytest.mark.parametrize("line", OTHERS)
def test_file_without_rounds_is_refused(tmp_path: Path, line: str, log: LogRecorder) -> None:
    (tmp_path / "r").write_text(f"{line}\n" * 30)
    with pytest.raises(ValueError, match=r"no line of it is a round; give a file that fl\.JsonLines has written"):
        read(tmp_path / "r")
    assert not log.having("no round")


def test_empty_file_has_no_rounds(tmp_path: Path) -> None:
    JsonLines(tmp_path / "r")
    assert read(tmp_path / "r") == []


class Scores:
    """A function of a class of its own."""

    def __call__(self, model: Any) -> dict[str, float]:
        return {"f1": 0.5}


def gone(model: Any) -> dict[str, float]:
    """A measure that fails."""
    raise ValueError("the test set is gone")


@pytest.mark.parametrize(
    ("returned", "kinds"),
    [(5, "int"), (None, "NoneType"), ({"loss": [0.5], "f1": 1.0}, "{'loss': list, 'f1': float}")],
)
def test_measure_without_numbers_is_logged_in_one_line(returned: Any, kinds: str, log: LogRecorder) -> None:
    def measure(model: Any) -> Any:
        return returned

    with Federation(callbacks=[Measured(measure, [])], min_clients=1) as federation:
        federation.join(A, gives(1))
        federation.round(1)
    [line] = log.having("", logging.WARNING)
    assert line == f"{name_of(measure)} returned {kinds}; expected a dict of numbers by name"


def test_raising_measure_is_logged_in_one_line(log: LogRecorder) -> None:
    Measured(gone, []).round_ends(report(), zeros())
    assert log.having("", logging.INFO) == [f"{__name__}:gone raised ValueError: the test set is gone"]


class Speechless(Exception):
    def __str__(self) -> str:
        raise AttributeError("reason")


def test_measure_whose_error_has_no_text_is_logged(log: LogRecorder) -> None:
    def measure(model: Any) -> Any:
        raise Speechless

    Measured(measure, []).round_ends(report(), zeros())
    assert log.having("raised Speechless: it has no text, because its __str__ raises")


def test_async_measure_is_refused() -> None:
    async def measure(model: Any) -> Any:
        return {}

    with pytest.raises(InvalidOption, match=r"Measured.measure: .*; expected a function of a model, not an async one"):
        Measured(measure, [])  # type: ignore[arg-type]


def test_functions_are_named_as_in_config_files() -> None:
    assert name_of(gone) == f"{__name__}:gone"
    assert name_of(Scores()) == f"{__name__}:Scores"
    assert name_of(functools.partial(gone)) == "functools:partial"


def test_unwritable_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        JsonLines(tmp_path / "nowhere" / "rounds.jsonl")


@installed("tensorboard")
def test_tensorboard_gets_the_scalars_of_each_round(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    events_of: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with TensorBoard(tmp_path) as callback:
        for number in (1, 2):
            callback.round_ends(report(number, seconds=float(number)), filled(number))
        events = events_of.EventAccumulator(
            str(tmp_path)
        ).Reload()  # while it is open: a round is there when it has ended
    assert set(events.Tags()["scalars"]) == set(scalars(report()))
    assert [(event.step, event.value) for event in events.Scalars("seconds")] == [(1, 1.0), (2, 2.0)]
    assert [event.value for event in events.Scalars("evaluation/accuracy")] == [0.75, 0.75]


@installed("tensorboard")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_full_disk_costs_no_later_round_of_tensorboard(tmp_path: Path) -> None:
    """Its writer's thread ends with the first error, and each later call raises that error again."""
    pytest.importorskip("torch")
    loader: Any = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    with TensorBoard(tmp_path) as callback:
        callback.round_ends(report(1), zeros())
        (file,) = tmp_path.iterdir()
        with disk_of(file.stat().st_size + 20), pytest.raises(OSError, match="too large"):
            callback.round_ends(report(2), zeros())
        for number in (3, 4):
            callback.round_ends(report(number), zeros())
    events = [event for path in tmp_path.iterdir() for event in loader.EventFileLoader(str(path)).Load()]
    assert {event.step for event in events if any(v.tag == "seconds" for v in event.summary.value)} == {1, 3, 4}


MLFLOW = """
import json, sys
from mlflow import MlflowClient
from fl.callbacks.mlflow import MLflow
from tests.fl.callbacks.test_jsonl import away_and_back, report
away_and_back()
uri = sys.argv[1]
for rounds in ([1, 2], [3]):
    with MLflow(uri, "digits") as callback:
        for number in rounds:
            callback.round_ends(report(number, seconds=float(number)), {})
client = MlflowClient(tracking_uri=uri)
runs = client.search_runs([client.get_experiment_by_name("digits").experiment_id], order_by=["start_time"])
history = [[(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "seconds")] for run in runs]
print(json.dumps([sorted(history), [run.info.status for run in runs], sorted(runs[0].data.metrics)]))
"""


class Answers(BaseHTTPRequestHandler):
    """What MLflow's server would say, unless it is away."""

    asked: queue.Queue[tuple[str, bool]] = queue.Queue()  # the last word of each call, and whether it was answered
    away = False

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        step = [str(metric["step"]) for metric in json.loads(body or "{}").get("metrics", [])][:1]
        run = {"info": {"run_id": "7", "experiment_id": "1"}, "data": {}}
        answer = json.dumps({"experiment": {"experiment_id": "1"}, "run": run}).encode()
        away = self.away
        # before the answer: the next call is another thread's, and comes as soon as this one is answered
        self.asked.put((step[0] if step else self.path.rpartition("/")[2].partition("?")[0], not away))
        self.send_response(503 if away else 200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


def away_and_back() -> None:
    """LogRecorder five rounds in an MLflow that is away for two of them, and for the end. In a process of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    logged: list[str] = []
    with LogRecorder() as log:
        with MLflow(f"http://127.0.0.1:{server.server_port}") as callback:
            for number, away in enumerate((False, True, True, False), 1):
                Answers.away = away
                callback.round_ends(report(number), {})
                logged += _logged_until("2" if away else str(number), not away)
            log.wait("answers again")
            Answers.away = True
            callback.round_ends(report(5), {})
        print(json.dumps([logged, log.having("MLflow at")]))


def _logged_until(call: str, answered: bool) -> list[str]:
    """Wait for a call; return what was answered meanwhile, with it."""
    asked = [*iter(lambda: Answers.asked.get(timeout=30), (call, answered)), (call, answered)]
    return [name for name, answered in asked if answered]


@pytest.mark.slow
@installed("mlflow")
def test_mlflow_gets_the_scalars_of_each_round_also_after_an_outage_that_is_logged_once(tmp_path: Path) -> None:
    """One process for both: to import MLflow takes seconds."""
    environment = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    command = [sys.executable, "-c", MLFLOW, (tmp_path / "runs").as_uri()]
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True, timeout=60)
    *_, away, stored = done.stdout.splitlines()
    logged, (left, back, left_again, end) = json.loads(away)
    assert logged == ["get-by-name", "create", "1", "2", "3", "4"]
    for line in (left, left_again):
        assert "does not answer (too many 503 error responses); rounds go on, and are kept for it" in line
    assert "answers again" in back
    assert "has not got the end of the run, and 1 of its rounds" in end
    history, statuses, names = json.loads(stored)
    assert history == [[[1, 1.0], [2, 2.0]], [[3, 3.0]]]
    assert statuses == ["FINISHED"] * 2
    assert names == sorted(scalars(report()))


@pytest.mark.slow
@installed("prometheus_client")
def test_prometheus_serves_last_round_and_totals() -> None:
    with Prometheus(port=0) as callback:
        callback.round_ends(report(1), zeros())
        callback.round_ends(report(2, failures={B: LATE}, evaluation={"accuracy": 0.875}), zeros())
        lines = _fetched(callback.port)
    assert "fl_round 2.0" in lines
    assert "fl_clients 1.0" in lines
    assert "fl_round_seconds 2.0" in lines
    assert 'fl_metrics{name="loss"} 0.5' in lines
    assert 'fl_evaluation{name="accuracy"} 0.875' in lines
    assert 'fl_failures_total{why="late"} 2.0' in lines
    assert 'fl_failures_total{why="lost"} 1.0' in lines
    assert 'fl_failures_total{why="void"} 0.0' in lines
    assert 'fl_evaluation_failures_total{why="lost"} 2.0' in lines
    assert 'fl_evaluation_failures_total{why="void"} 0.0' in lines
    assert "fl_bytes_in_total 2000.0" in lines
    assert "fl_bytes_out_total 6000.0" in lines


@pytest.mark.slow
@installed("prometheus_client")
def test_prometheus_removes_a_metric_that_is_missing() -> None:
    with Prometheus(port=0) as callback:
        callback.round_ends(report(1, metrics={"loss": 0.5, "f1": 1.0}), zeros())
        callback.round_ends(report(2, metrics={"loss": 0.25}, evaluation={}), zeros())
        assert _series(callback.port) == ['fl_metrics{name="loss"} 0.25']


@pytest.mark.slow
@installed("prometheus_client")
def test_prometheus_limits_names_that_clients_invent(log: LogRecorder) -> None:
    def made_up(number: int) -> dict[str, float]:
        return {f"{number} {i:03}": 1.0 for i in range(1000)}

    with Prometheus(port=0) as callback:
        callback.round_ends(report(1, metrics={"loss": 0.5}), zeros())
        for number in (2, 3, 4):  # the names that most clients have are the first of a report
            metrics = {"loss": 0.25, **made_up(number)}
            evaluation = {"server_f1": 0.75, **made_up(number)}
            callback.round_ends(report(number, metrics=metrics, evaluation=evaluation), zeros())
        series = _series(callback.port)
    assert 'fl_metrics{name="loss"} 0.25' in series
    assert 'fl_evaluation{name="server_f1"} 0.75' in series
    assert [sum(line.startswith(name) for line in series) for name in ("fl_metrics", "fl_evaluation")] == [100, 100]
    assert 'fl_metrics{name="4 000"} 1.0' in series
    assert 'fl_metrics{name="3 000"} 1.0' not in series
    assert log.having("Prometheus") == [
        f"{which} has 1001 names; Prometheus gets 100 (said once)" for which in ("fl_metrics", "fl_evaluation")
    ]


@pytest.mark.slow
@installed("prometheus_client")
def test_each_prometheus_callback_has_its_registry() -> None:
    with Prometheus(port=0) as one, Prometheus(port=0) as other:
        one.round_ends(report(7), zeros())
        assert "fl_round 7.0" in _fetched(one.port)
        assert "fl_round 0.0" in _fetched(other.port)


@pytest.mark.slow
@installed("prometheus_client")
def test_port_in_use_is_reported() -> None:
    with Prometheus(port=0) as callback, pytest.raises(AddressError, match=f"127.0.0.1:{callback.port} .*another port"):
        Prometheus(port=callback.port)


def _series(port: int) -> list[str]:
    return [line for line in _fetched(port) if line.startswith(("fl_metrics{", "fl_evaluation{"))]


def _fetched(port: int) -> list[str]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text: str = response.read().decode()
    return text.splitlines()


@pytest.mark.parametrize(
    ("make", "module", "text"),
    [
        (lambda: TensorBoard("."), "torch.utils.tensorboard", r"TensorBoard needs .*: pip install torch tensorboard"),
        (lambda: MLflow("http://127.0.0.1:1"), "mlflow", r"fl\.MLflow needs mlflow .*: pip install mlflow-skinny"),
        (lambda: Prometheus(0), "prometheus_client", r"fl\.Prometheus needs .*: pip install prometheus_client"),
    ],
    ids=["tensorboard", "mlflow", "prometheus"],
)
def test_missing_library_is_named_with_advice(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], fl.Callback], module: str, text: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=text):
        make()


def test_callbacks_import_their_libraries_lazily() -> None:
    code = """if True:
    import sys
    import fl.callbacks.jsonl, fl.callbacks.tensorboard, fl.callbacks.mlflow, fl.callbacks.prometheus
    import fl.callbacks.progress, fl.callbacks.plots
    print([name for name in ("torch", "tensorboard", "mlflow", "prometheus_client", "rich", "matplotlib")
           if name in sys.modules])"""
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout == b"[]\n"
