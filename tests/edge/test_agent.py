"""edge.run: the tasks are done in a child process, whose failures are reported; the run ends with the federation."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
import edge.agent
import fl
import netq
from edge.group import Group
from edge.machine import Machine
from edge.patience import Patience, Watched
from edge.supervisor import Supervisor
from edge.work import federation
from netq.testing.log import LogRecorder
from tests.edge import training

SOON = 20.0  # seconds in which all happens that does happen
ID = uuid.UUID(int=5)
CONNECTION = netq.ConnectionOptions(retry_min=0.01, retry_max=0.1, linger=0.5)
HERE = training.__name__


@contextmanager
def server(model: Any = None, **settings: Any) -> Iterator[fl.Server]:
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0), connection=CONNECTION)
    model = model or {"w": np.zeros(3, np.float32)}
    with fl.Server(
        model, options, min_clients=1, patience=fl.Patience(deadline=SOON, void_pause=0.0), **settings
    ) as made:
        yield made


@contextmanager
def running(function: Callable[..., Any], *args: Any) -> Iterator[None]:
    """In a thread; what it raises is raised here."""
    with ThreadPoolExecutor() as pool:
        run = pool.submit(function, *args)
        yield
        run.result(SOON)


def until_shown(aggregator: fl.Server, stage: fl.Stage) -> None:
    end = time.monotonic() + 3 * SOON
    while [each.stage for each in aggregator.members()] != [stage]:
        assert time.monotonic() < end
        time.sleep(0.01)


def config(aggregator: fl.Server, train: str = "train", **options: Any) -> edge.Config:
    return edge.Config(aggregator.netloc, id=ID, connection=CONNECTION, train=f"{HERE}:{train}", **options)


@pytest.mark.slow
def test_device_takes_part_under_its_id() -> None:
    with server(evaluate=True) as aggregator:
        limits = edge.Limits(keep=False)
        device = config(aggregator, evaluate=f"{HERE}:evaluate", settings={"step": 2}, training=limits)
        with running(edge.run, device):
            reports = list(aggregator.rounds(2))
            aggregator.close()
    assert [report.clients for report in reports] == [(ID,)] * 2
    assert [(report.metrics["round"], report.metrics["count"]) for report in reports] == [(1, 1), (2, 2)]
    assert len({report.metrics["pid"] for report in reports}) == 2
    assert [report.evaluation["accuracy"] for report in reports] == [0.5] * 2
    assert all(report.evaluation["usage.memory_mb"] > 10 for report in reports)
    assert "usage" not in str(reports[0])
    assert aggregator.model["w"].tolist() == [4, 4, 4]


@pytest.mark.slow
def test_a_device_that_skips_keeps_its_state_and_has_not_failed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with server() as aggregator, running(edge.run, config(aggregator, "skips_at_first", state=state)):
        first, second = aggregator.round(), aggregator.round()
        aggregator.close()
    assert (first.clients, first.failures, first.skipped) == ((), {}, {ID: "no new pictures"})
    assert (second.clients, second.skipped, second.metrics["count"]) == ((ID,), {}, 2)


@pytest.mark.slow
def test_device_tries_a_training_out_before_it_takes_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first trial fails, and the server sees why. What a trial has counted is not the state of the first task."""
    caplog.set_level("INFO", "netq.fl")
    settings = {"mark": str(tmp_path / "mark"), "how": "exit"}
    with server() as aggregator:
        device = config(aggregator, "stumbles", check=True, name="board-3", settings=settings)
        with running(edge.run, device):
            report = aggregator.round()
            (found,) = aggregator.members()
            aggregator.close()
    assert (report.clients, report.failures, report.metrics["count"]) == ((ID,), {}, 1)
    assert found.check > 0
    assert found.reason == ""
    said = [text for text in caplog.messages if text.startswith("board-3 ")]
    parts = ("wants no task: it tries a training", "leaves: its check has failed: the training process", "checked by a")
    assert [sum(part in text for text in said) for part in parts] == [2, 1, 1]


@pytest.mark.slow
def test_check_has_the_config_of_this_device_and_sees_the_end_of_the_federation(tmp_path: Path) -> None:
    settings = {"mark": str(tmp_path / "mark")}
    with server(config=lambda client: {"step": client.properties["step"]}) as aggregator:
        device = config(aggregator, "waits", check=True, properties={"step": 2}, settings=settings)
        with running(edge.run, device), ThreadPoolExecutor() as pool:
            waiting = pool.submit(aggregator.wait, 2)
            until_shown(aggregator, fl.Stage.VISITOR)
            closed = pool.submit(aggregator.close, SOON)
            assert isinstance(waiting.exception(SOON), netq.Closed)  # the end is announced
            (tmp_path / "mark").touch()
            closed.result(SOON)


@pytest.mark.slow
def test_check_refuses_a_model_that_the_device_cannot_take(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "netq.fl")
    connection = replace(CONNECTION, message_size=100_000)
    with server({"w": np.zeros(10**6, np.float32)}) as aggregator:
        device = replace(config(aggregator, check=True), connection=connection)
        with running(edge.run, device), LogRecorder("netq.fl") as log, ThreadPoolExecutor() as pool:
            waiting = pool.submit(aggregator.wait, 2)
            log.wait(
                "its check has failed: the server's model has 4 MB, and this device takes messages of 0.1 MB at most"
            )
            until_shown(aggregator, fl.Stage.VISITOR)  # it tries again
            aggregator.close()
            assert isinstance(waiting.exception(SOON), netq.Closed)


@pytest.mark.slow
def test_server_that_describes_nothing_gets_a_device_without_a_check(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edge.agent._DESCRIBED", 0.0)
    with server() as aggregator, running(edge.run, config(aggregator, check=True)):
        report = aggregator.round()
        (found,) = aggregator.members()
        aggregator.close()
    assert (report.clients, found.check) == ((ID,), 0)
    assert "taking part unchecked (client.check)" in caplog.text


def test_pauses_between_sessions_are_those_with_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []
    monkeypatch.setattr(edge.agent, "take_part", lambda *arguments, **_: pauses.append(arguments[-1]))
    device = edge.Config(netq.NetworkLocation("127.0.0.1", 9), train=f"{HERE}:train")
    supervisor = Supervisor()
    patience = Patience(supervisor, Watched())
    edge.agent.Agent(device, federation(device), supervisor, Group(), patience).run()
    assert pauses == [patience.pause]


@pytest.mark.parametrize("keep", [True, None])
def test_kept_child_does_all_rounds(keep: bool | None, caplog: pytest.LogCaptureFixture) -> None:
    """By default it is kept: this machine has four times the memory that the child has."""
    caplog.set_level("INFO", "edge")
    with server() as aggregator, running(edge.run, config(aggregator, training=edge.Limits(keep=keep))):
        reports = list(aggregator.rounds(3))
        aggregator.close()
    assert [report.metrics["count"] for report in reports] == [1, 2, 3]
    (pid,) = {report.metrics["pid"] for report in reports}
    assert pid != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    said = re.findall(r"the process that trains has \d+ MB, and took [\d.]+ s to start: it stays", caplog.text)
    assert len(said) == (keep is None)


def test_child_with_much_of_the_memory_ends_after_each_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "edge")
    monkeypatch.setattr(Machine, "memory", lambda self: 40_000_000)
    with server() as aggregator, running(edge.run, config(aggregator)):
        reports = list(aggregator.rounds(2))
        aggregator.close()
    assert len({report.metrics["pid"] for report in reports}) == 2
    assert caplog.text.count("it ends after each task, as it has more than a quarter of this machine's memory") == 1


def test_model_that_does_not_fit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "memory", lambda self: 5_000_000)
    options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0), connection=CONNECTION)
    model = {"w": np.zeros(10**6, np.float32)}
    with (
        fl.Server(model, options, min_clients=1, patience=fl.Patience(deadline=SOON)) as aggregator,
        running(edge.run, config(aggregator)),
    ):
        for _ in range(2):
            reason = aggregator.round().failures[ID].reason
            assert re.search(
                "the task has 4000[0-9]{3} bytes, and it takes 1000000 at most: use a smaller model", reason
            )
        (session,) = aggregator.statistics().values()
        assert session.connected
        assert session.bytes_out < 10_000
        aggregator.close()


def test_device_settings_override_the_server_config() -> None:
    with server(config={"rate": 0.1, "batch": 32}) as aggregator:
        settings = {"batch": 8, "field": {"name": "north"}}
        device = config(aggregator, "tells", training=edge.Limits(keep=True), settings=settings)
        with running(edge.run, device):
            reason = aggregator.round().failures[ID]
            aggregator.close()
    told = "[('batch', 8), ('field', {'name': 'north'}), ('rate', 0.1), ('round', 1), ('state', {})]"
    assert reason == fl.ClientFailure(fl.FailureKind.FAILED, f"OSError: the sensor does not answer {told}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "limits", "reason"),
    [
        ("exit", {}, "the training process ended with status 7"),
        ("exit", {"keep": False}, "the training process ended with status 7"),
        ("segfault", {}, "the training process was ended by SIGSEGV"),
        ("kill", {}, "the training process was killed (SIGKILL); the system does that when memory runs out"),
        ("hang", {"seconds": 10.0}, "it took longer than training.seconds (10); killed"),
        ("memory", {"memory": 500}, "MemoryError: "),
        ("leave", {"seconds": 10.0, "keep": False}, "it took longer than training.seconds (10); killed"),
        ("write", {}, "the training has written to the descriptor 3, which is the agent's"),
        ("orphan", {}, "the training process ended with status 7"),
    ],
)
def test_failing_child_is_reported_and_replaced(tmp_path: Path, how: str, limits: dict[str, Any], reason: str) -> None:
    """One that is kept, where the limits say nothing else: its failure is told in the same way."""
    settings = {"how": how, "mark": str(tmp_path / "mark")}
    with server() as aggregator:
        device = config(aggregator, "stumbles", training=edge.Limits(**{"keep": True, **limits}), settings=settings)
        with running(edge.run, device):
            failure = aggregator.round().failures[ID]
            assert aggregator.round().clients == (ID,)
            aggregator.close()
    assert failure.why is fl.FailureKind.FAILED
    assert failure.reason.startswith(reason)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [False, True])
def test_training_that_returns_in_two_processes_is_one_update(keep: bool) -> None:
    limits = edge.Limits(keep=keep)
    with server() as aggregator, running(edge.run, config(aggregator, "forks", training=limits)):
        reports = list(aggregator.rounds(3))
        aggregator.close()
    assert [report.metrics["count"] for report in reports] == [1, 2, 3]
    assert aggregator.model["w"].tolist() == [3, 3, 3]


@pytest.mark.slow
def test_failure_leaves_all_of_the_state_unchanged(tmp_path: Path) -> None:
    settings = {"mark": str(tmp_path / "mark")}
    with server() as aggregator:
        device = config(aggregator, "forgets", training=edge.Limits(keep=True), settings=settings)
        with running(edge.run, device):
            reports = [aggregator.round() for _ in range(3)]
            aggregator.close()
    assert [report.clients for report in reports] == [(ID,), (), (ID,)]
    assert [report.metrics.get("rounds") for report in reports] == [1, None, 2]


@pytest.mark.slow
def test_functions_that_cannot_be_imported_for_once_are_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "replaced_now.py"
    right = f"from {HERE} import train\n"
    module.write_text(right)
    monkeypatch.syspath_prepend(tmp_path)
    with server() as aggregator:
        limits = edge.Limits(keep=False)
        device = edge.Config(
            aggregator.netloc, id=ID, connection=CONNECTION, train="replaced_now:train", training=limits
        )
        with running(edge.run, device):
            assert aggregator.round().clients == (ID,)
            module.write_text("raise OSError('the disk is busy')\n")
            reason = str(aggregator.round().failures[ID])
            module.write_text(right)
            assert aggregator.round().clients == (ID,)
            aggregator.close()
    assert "raises OSError: the disk is busy" in reason


def test_settings_that_are_too_large_are_refused() -> None:
    device = edge.Config(netq.NetworkLocation("127.0.0.1", 1), train=f"{HERE}:train", settings={"text": "x" * 10**6})
    with pytest.raises(netq.InvalidOption, match=r"^\[settings\]: they are too large"):
        edge.run(device)


def test_wrong_name_ends_the_run() -> None:
    with server() as aggregator, pytest.raises(netq.InvalidOption, match=r"client\.train: .*did you mean train\?"):
        edge.run(config(aggregator, "trian"))


@pytest.mark.slow
def test_state_outlives_the_agent(tmp_path: Path) -> None:
    counts, keep = [], edge.Limits(keep=True)
    for _ in range(2):
        with server() as aggregator, running(edge.run, config(aggregator, state=tmp_path / "state", training=keep)):
            counts.append(aggregator.round().metrics["count"])
            aggregator.close()
    assert counts == [1, 2]


def test_key_without_an_authority_ends_the_run(tmp_path: Path) -> None:
    security = netq.SecurityOptions(key=tmp_path / "own.pem")
    device = edge.Config(netq.NetworkLocation("127.0.0.1", 9), id=ID, train=f"{HERE}:train", security=security)
    with pytest.raises(netq.InvalidOption, match="a client with a key of its own needs `authority`"):
        edge.run(device)
