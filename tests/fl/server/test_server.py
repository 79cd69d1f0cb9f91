"""Rounds over real sockets: which updates count, which clients are left out and why, and the resulting model.

Models are chosen so that their means are exact floats, so tests compare with `==`.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import queue
import re
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fl
import netq
from fl.envelope import Introduction, Job
from fl.messages import MESSAGES, Reply, Report, Task, Update
from fl.properties import title
from fl.server.member import Member
from fl.server.standing import Candidates, Standing
from netq.testing.proxy import Proxy
from netq.utils.stream import PickleSerializer
from tests.fl.federation import (
    IDS,
    SHORT,
    SOON,
    A,
    B,
    C,
    D,
    Federation,
    Train,
    at,
    filled,
    gives,
    reasons,
    reply,
    zeros,
)


class LogLines(logging.Handler):
    """Collects the lines of a logger; a test can wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.put(record.getMessage())

    def wait_for(self, pattern: str) -> str:
        while not re.search(pattern, line := self._lines.get(timeout=SOON)):
            pass
        return line


@pytest.fixture
def log_lines() -> Iterator[LogLines]:
    handler = LogLines()
    logger = logging.getLogger("netq.fl")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


# The result of valid updates.


def test_rounds_are_fedavg() -> None:
    random = np.random.default_rng(1)
    start: dict[str, Any] = {"a": random.normal(size=(31, 7)).astype(np.float32), "b": random.normal(size=5)}
    shifts = {id: random.normal() for id in IDS}
    numbers = {id: 3 * n + 1 for n, id in enumerate(IDS)}

    def trains(id: uuid.UUID) -> Train:
        def train(model: Any, config: Mapping[str, Any]) -> Update:
            moved = {name: np.cos(array + shifts[id]).astype(array.dtype) for name, array in model.items()}
            return Update(moved, numbers[id])

        return train

    expected = {name: array.astype(np.float64) for name, array in start.items()}
    with Federation(start, min_clients=4) as federation:
        for id in IDS:
            federation.join(id, trains(id))
        reports = list(federation.server.rounds(5))
        for _ in range(5):
            total = sum(numbers.values())
            expected = {
                name: sum(np.cos(array + shifts[id]) * (numbers[id] / total) for id in IDS)
                for name, array in expected.items()
            }
        assert [report.number for report in reports] == [1, 2, 3, 4, 5]
        for report in reports:
            assert (set(report.clients), report.failures) == (set(IDS), {})
        assert federation.server.model.keys() == start.keys()
        for name in start:
            np.testing.assert_allclose(federation.server.model[name], expected[name], rtol=1e-6, atol=1e-6)


def test_weights_are_numbers_of_examples() -> None:
    with Federation() as federation:
        federation.join(A, gives(0, 1))
        federation.join(B, gives(8, 3))
        federation.round(2)
        assert federation.w == [6, 6, 6]


def test_numpy_models_keep_their_form() -> None:
    model: dict[str, Any] = {
        "f2": np.ones((2, 3), np.float16),
        "f4": np.asfortranarray(np.ones((4, 5), np.float32)),
        "f8": np.ones((), np.float64),
        "c8": np.ones(3, np.complex64),
        "num_batches_tracked": np.array(4, np.int64),
        "u1": np.full(3, 250, np.uint8),
        "bool": np.array([True, False]),
        "empty": np.ones((0, 3), np.float32),
    }
    with Federation(model) as federation:
        for id in (A, B):
            federation.join(id, lambda model, config: Update(model, 1))
        federation.round(2)
        result = federation.server.model
        assert list(result) == list(model)
        for name, array in model.items():
            assert type(result[name]) is np.ndarray
            assert (result[name].dtype, result[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(result[name], array)


@pytest.mark.slow
def test_torch_models_stay_torch_with_numpy_clients() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    start = module.state_dict()

    def by_torch(model: Any, config: Mapping[str, Any]) -> Update:
        assert all(type(tensor) is torch.Tensor for tensor in model.values())
        mine = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        mine.load_state_dict(model)
        state = mine.state_dict()
        state["0.weight"] += 2
        state["1.num_batches_tracked"] += 4
        return Update(state, 1)

    def by_numpy(model: Any, config: Mapping[str, Any]) -> Update:
        arrays = {name: np.asarray(tensor) for name, tensor in model.items()}
        arrays["1.num_batches_tracked"] = arrays["1.num_batches_tracked"] + 2
        return Update(arrays, 1)

    with Federation(start) as federation:
        federation.join(A, by_torch)
        federation.join(B, by_numpy)
        report = federation.round(2)
        assert report.failures == {}
        result: Any = federation.server.model
        assert list(result) == list(start)
        for name, tensor in start.items():
            assert type(result[name]) is torch.Tensor
            assert (result[name].dtype, result[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(result["1.num_batches_tracked"], torch.tensor(3))
        torch.testing.assert_close(result["0.weight"], start["0.weight"] + 1, rtol=0, atol=1e-6)
        assert torch.equal(result["1.running_var"], start["1.running_var"])


def test_each_client_has_memory_of_its_own() -> None:
    start, seen = zeros(), []

    def spoils(model: Any, config: Mapping[str, Any]) -> Update:
        seen.append(model["w"].tolist())
        model["w"][:] += 8
        return Update(model, 1)

    def looks(model: Any, config: Mapping[str, Any]) -> Update:
        seen.append(model["w"].tolist())
        return Update(model, 1)

    with Federation(start) as federation:
        federation.join(A, spoils)
        federation.join(B, looks)
        federation.round(2)
        assert federation.w == [4] * 3
        assert start["w"].tolist() == [0] * 3
        between = federation.server.model["w"]
        federation.round(2)
        assert federation.w == [8] * 3
        assert between.tolist() == [4] * 3
    assert seen == [[0] * 3] * 2 + [[4] * 3] * 2


def tied(base: Any) -> dict[str, Any]:
    """Names for one memory: as it is, in another shape, a part of it, overlapping and with gaps."""
    parts = {"start": base[:6], "end": base[4:], "every second": base[::2]}
    return {"wte": base, "lm_head": base, "column": base.reshape(-1, 1), **parts}


@pytest.mark.parametrize("base", [np.zeros(9, np.float32), torch.zeros(9), torch.nn.Parameter(torch.zeros(9))])
def test_tied_weights_change_once_in_each_round(base: Any) -> None:
    def adds_in_place(model: Any, config: Mapping[str, Any]) -> Update:
        with torch.no_grad():
            for name in model:
                model[name] += 1
        return Update(model, 1)

    with Federation(tied(base), min_clients=1) as federation:
        federation.join(A, adds_in_place)
        for number in (1, 2):
            federation.round(1)
            values = {float(value) for tensor in federation.server.model.values() for value in tensor.flatten()}
            assert values == {number}


def test_model_of_a_strategy_with_tied_weights_is_separated() -> None:
    class Ties(fl.FedAvg):
        def finish(self, model: Any, *, number: int) -> dict[str, Any]:
            done = super().finish(model, number=number)
            return {"w": done["w"], "v": done["w"]}

    with Federation({"w": np.zeros(3, np.float32), "v": np.zeros(3, np.float32)}, strategy=Ties()) as federation:
        for id in (A, B):
            federation.join(id, lambda model, config: Update(model, 1))
        federation.round(2)
        one, other = federation.server.model.values()
        assert not np.shares_memory(np.asarray(one), np.asarray(other))


def test_clients_get_the_round_and_the_config() -> None:
    told: list[Any] = []

    def train(model: Any, config: Mapping[str, Any]) -> Update:
        told.append(config)
        return Update(model, 1)

    class Cools(fl.FedAvg):
        def config(self, number: int) -> Mapping[str, Any]:
            return {"rate": 1 / number, "layers": ["a", "b"]}

    settings: dict[str, Any] = {"strategy": Cools(), "config": {"rate": 99, "device": {"cpu": True}}, "min_clients": 1}
    with Federation(**settings) as federation:
        federation.join(A, train)
        for _ in federation.server.rounds(2):
            pass
    both = {"layers": ["a", "b"], "device": {"cpu": True}, "state": {}}
    assert told == [{**both, "round": 1, "rate": 1.0}, {**both, "round": 2, "rate": 0.5}]


class OwnConfig(fl.FedAvg):
    """A strategy that makes its config in each round."""

    def config(self, number: int) -> Mapping[str, Any]:
        return {"folder": Path("data")}


def test_a_config_that_cannot_be_sent_is_an_error() -> None:
    with Federation(strategy=OwnConfig(), min_clients=1) as federation:
        federation.join(A, gives(1))
        with pytest.raises(
            netq.InvalidOption, match=r"OwnConfig\.config: 'folder': a pathlib\.PosixPath; expected None"
        ):
            federation.round(1)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": [np.zeros(3)]}, "model: [array([0., 0., 0.])]; expected a dict of arrays or tensors by name"),
    ({"model": {}}, "model: {}; expected a dict of arrays"),
    ({"options": ("127.0.0.1", 5000)}, "options: ('127.0.0.1', 5000); expected a netq.CommunicatorOptions"),
    ({"strategy": fl.FedAvg}, "strategy: <class 'fl.strategies.fedavg.FedAvg'>; expected an object, as in fl.FedAvg()"),
    ({"strategy": "FedAvg"}, "strategy: 'FedAvg'; expected an object"),
    ({"min_clients": 2.5}, "min_clients: 2.5; expected 1 or more, a whole number"),
    ({"min_clients": True}, "min_clients: True; expected"),
    ({"patience": 5.0}, "patience: 5.0; expected an object, as in fl.Patience(deadline=60)"),
    ({"evaluate": "yes"}, "evaluate: 'yes'; expected True, False, or a mapping"),
    ({"config": 3}, "config: 3; expected a dict of plain values by name"),
    ({"config": {"x": [print]}}, "config: 'x': a builtins.builtin_function_or_method; expected None, bool, int"),
    ({"config": {"round": 5}}, "config: 'round' is the number of the round; expected another name"),
    ({"callbacks": fl.Callback()}, "callbacks: <fl.callbacks.base.Callback object at"),
    ({"callbacks": ["x"]}, "callbacks: 'x'; expected objects of classes that inherit from fl.Callback"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=[said[:20] for _, said in WRONG])
def test_an_invalid_argument_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(netq.InvalidOption, match=f"^Server.{re.escape(said)}"):
        fl.Server(**{"model": zeros(), **wrong})


def test_a_client_checks_its_arguments() -> None:
    with pytest.raises(netq.InvalidOption, match=r"Client\.train: None; expected a function"):
        fl.Client(None)  # type: ignore[arg-type]
    with pytest.raises(netq.InvalidOption, match=r"Client\.evaluate: 5; expected a function"):
        fl.Client(gives(1), 5)  # type: ignore[arg-type]
    with pytest.raises(netq.InvalidOption, match=r"Client\.run: options: \('h', 1\); expected a netq\.Commun"):
        fl.Client(gives(1)).run(("h", 1))  # type: ignore[arg-type]


def test_min_clients_below_the_strategys_minimum_warns(caplog: pytest.LogCaptureFixture) -> None:
    with Federation(strategy=fl.MultiKrum(byzantine=3), min_clients=2):
        pass
    assert "MultiKrum needs 9 updates; with min_clients=2 a round may come to nothing" in caplog.text


def test_a_client_logs_what_is_wrong_with_its_update(caplog: pytest.LogCaptureFixture) -> None:
    with Federation(min_clients=1) as federation:
        federation.join(A, gives(1))
        federation.join(B, lambda model, config: fl.Update({"w": np.full(3, np.nan, np.float32)}, 1))
        federation.join(C, lambda model, config: fl.Update(filled(1), -1))
        assert set(federation.round(3).failures) == {B, C}
    assert "round 1: train: most strategies refuse this update: 'w' holds NaN" in caplog.text
    assert "round 1: train failed: InvalidUpdate: num_examples: int -1; expected a whole number" in caplog.text
    assert "Traceback" not in caplog.text


def test_metrics_are_means_by_number_of_examples() -> None:
    with Federation() as federation:
        federation.join(A, gives(0, 1, loss=1.0, only=5.0))
        federation.join(B, gives(0, 3, loss=3.0))
        report = federation.round(2)
    assert report.metrics == {"loss": 2.5, "only": 5.0}
    assert report.evaluation == {}


def test_a_metric_that_is_not_finite_costs_no_update() -> None:
    """As the AUC of a client whose examples are all of one class."""
    with Federation(evaluate=True, min_clients=3) as federation:
        for client, auc in ((A, math.nan), (B, 0.75), (C, -math.inf)):
            federation.join(client, gives(1, auc=auc), lambda m, c, auc=auc: fl.Report(1, {"auc": auc}))
        report = federation.round(3)
    assert (set(report.clients), report.failures) == ({A, B, C}, {})
    assert (report.metrics, report.evaluation) == ({"auc": 0.75}, {"auc": 0.75})
    assert (report.not_finite, report.evaluation_not_finite) == ({"auc": 2}, {"auc": 2})
    assert math.isnan(report.client_metrics[A]["auc"])
    assert report.client_evaluation[C] == {"auc": -math.inf}


def test_the_report_has_the_examples_as_they_count() -> None:
    with Federation(evaluate=True, strategy=fl.FedAvg(max_examples=10)) as federation:
        federation.join(A, gives(1, 3), lambda model, config: fl.Report(2))
        federation.join(B, gives(1, 5000), lambda model, config: fl.Report(20))
        report = federation.round(2)
    assert report.num_examples == {A: 3, B: 10}
    assert report.evaluation_examples == {A: 2, B: 10}


def test_means_of_metrics_do_not_overflow() -> None:
    largest = float(np.finfo(np.float32).max)
    with Federation() as federation:
        federation.join(A, gives(0, 1, loss=1.5e308))
        federation.join(B, gives(0, 1, loss=-1.5e308))
        federation.join(C, gives(0, 2**53 - 2, loss=largest))
        federation.join(D, gives(0, 2**53, loss=largest))
        report = federation.round(4)
    assert report.metrics["loss"] == pytest.approx(largest)
    assert report.client_metrics[B] == {"loss": -largest}


def test_clients_with_updates_in_the_model_evaluate_it() -> None:
    asked = []

    def evaluates(number: int) -> Any:
        def evaluate(model: Any, config: Mapping[str, Any]) -> Report:
            asked.append((config["round"], model["w"].tolist()))
            return Report(number, {"accuracy": 1.0 if number == 1 else 0.0})

        return evaluate

    with Federation(evaluate=True) as federation:
        federation.join(A, gives(2), evaluates(1))
        federation.join(B, gives(4), evaluates(3))
        federation.join(C, gives(6))  # cannot evaluate: that takes nothing from its update
        federation.join(D, gives(math.nan), evaluates(5))
        report = federation.round(4)
        assert federation.w == [4] * 3
    assert asked == [(1, [4] * 3)] * 2
    assert report.evaluation == {"accuracy": 0.25}
    assert (set(report.clients), set(report.failures)) == ({A, B, C}, {D})


def test_huge_numbers_of_examples_and_metrics_are_handled() -> None:
    with Federation(evaluate=True) as federation:
        federation.join(A, gives(1, 1, loss=1e308), lambda model, config: Report(2**53, {"accuracy": 0.5}))
        federation.join(B, gives(3, 1, loss=1e308), lambda model, config: Report(2**53, {"accuracy": 0.5}))
        federation.join(C, gives(9, 10**400))
        report = federation.round(3)
        assert federation.w == [2] * 3
    assert list(report.failures) == [C]
    assert report.failures[C].why in (fl.FailureKind.FAILED, fl.FailureKind.UNREADABLE, fl.FailureKind.INVALID)
    assert report.metrics == {"loss": float(np.finfo(np.float32).max)}
    assert report.evaluation == {"accuracy": 0.5}


def test_bytes_and_seconds_are_those_of_the_round() -> None:
    model = {"w": np.zeros(250_000, np.float32)}
    size = model["w"].nbytes

    def train(model: Any, config: Mapping[str, Any]) -> Update:
        return Update(model, 1)

    with Federation(model) as federation:
        federation.join(A, train)
        federation.join(B, train)
        federation.start(_leaves, at(federation.server.netloc, C), [Update({"w": np.zeros(500_000)}, 1)])
        begin = time.monotonic()
        reports = [federation.round(clients) for clients in (3, 3, 2)]  # it leaves in the second
        elapsed = time.monotonic() - begin
    assert 0 < sum(report.seconds for report in reports) <= elapsed
    assert 4_000_000 + 2 * size < reports[0].bytes_in < 4_000_000 + 2 * size + 10_000
    assert 3 * size < reports[0].bytes_out < 3 * size + 10_000
    assert reasons(reports[1]) == {C: "it has gone"}
    for report in reports[1:]:
        assert 2 * size < report.bytes_in < 2 * size + 10_000
        assert 2 * size < report.bytes_out < 2 * size + 10_000


def test_bytes_of_a_client_that_was_started_again_in_a_round() -> None:
    model = {"w": np.zeros(250_000, np.float32)}
    size = model["w"].nbytes

    def restarts(netloc: netq.NetworkLocation) -> None:
        for answers in (1, 1):  # the first session leaves with the task of round 2, the second one does it
            _leaves(at(netloc, A), [Update(model, 1)] * answers)

    with Federation(model, min_clients=1) as federation:
        federation.start(restarts, federation.server.netloc)
        first, second = (federation.round(1) for _ in range(2))
        assert second.clients == (A,)
        for report in (first, second):
            assert size < report.bytes_in < size + 10_000
            assert size < report.bytes_out < size + 10_000
        federation.server.close()


def _leaves(options: netq.CommunicatorOptions, answers: Sequence[Any]) -> None:
    """A client that answers the first tasks so, and leaves when there comes another."""
    options = netq.CommunicatorOptions(options.id, options.netloc, options.connection, fl.messages.MESSAGES)
    with netq.new(options=options) as server:
        server.put(Introduction({}))
        for answer in answers:
            server.put(reply(server.get().data, answer)).result(SOON)
        server.get()


def test_a_report_prints_as_one_line() -> None:
    report = fl.RoundReport(
        3,
        (A, B),
        {C: fl.ClientFailure(fl.FailureKind.FAILED, "no")},
        {"loss": 0.123456},
        {"accuracy": 0.9},
        1.234,
        5_000_000,
        12_345,
    )
    assert (
        str(report)
        == "round 3: 2 clients, 1 failed, loss 0.1235, evaluated accuracy 0.9, 1.23 s, 5.00 MB in, 12.35 kB out"
    )


# Participation.


def test_a_fraction_of_the_clients_takes_part() -> None:
    asked: list[uuid.UUID] = []

    def trains(id: uuid.UUID) -> Train:
        def train(model: Any, config: Mapping[str, Any]) -> Update:
            asked.append(id)
            return Update(model, 1)

        return train

    with Federation(strategy=fl.FedAvg(fraction=0.5)) as federation:
        for id in IDS:
            federation.join(id, trains(id))
        for _ in range(8):
            asked.clear()
            report = federation.round(4)
            assert len(report.clients) == 2
            assert set(asked) == set(report.clients)
            assert report.failures == {}


def test_all_selected_suffice_below_min_clients() -> None:
    with Federation(strategy=fl.FedAvg(fraction=0.25), min_clients=4) as federation:
        for id in IDS:
            federation.join(id, gives(5))
        assert len(federation.round(4).clients) == 1
        assert federation.w == [5] * 3


class Selects(fl.FedAvg):
    def __init__(self, *selected: uuid.UUID) -> None:
        super().__init__()
        self._selected = selected

    def select(self, number: int, clients: Sequence[uuid.UUID]) -> Sequence[uuid.UUID]:
        return self._selected


def test_a_strategy_may_select_no_client() -> None:
    asked = threading.Event()

    def train(model: Any, config: Mapping[str, Any]) -> Update:
        asked.set()
        return Update(filled(9), 1)

    with Federation(strategy=Selects(), min_clients=1) as federation:
        federation.join(A, train)
        report = federation.round(1)
        assert (report.clients, report.failures, report.bytes_out) == ((), {}, 0)
        assert federation.w == [0] * 3
    assert not asked.is_set()


@pytest.mark.slow
def test_duplicate_and_absent_selections_are_handled() -> None:
    asked: list[int] = []

    def train(model: Any, config: Mapping[str, Any]) -> Update:
        asked.append(config["round"])
        return Update(filled(4), 1)

    with Federation(strategy=Selects(A, A, D), min_clients=1) as federation:
        federation.join(A, train)
        federation.join(B, gives(8))
        for _ in range(2):
            report = federation.round(2)
            assert report.clients == (A,)
            assert reasons(report) == {D: "it has gone"}
    assert asked == [1, 2]


@pytest.mark.parametrize("wrong", [None, "abc", [1], [None]])
def test_a_wrong_selection_names_the_strategy(wrong: Any) -> None:
    strategy = Selects()
    strategy._selected = wrong
    with Federation(strategy=strategy, min_clients=1) as federation:
        federation.join(A, gives(4))
        with pytest.raises(
            netq.InvalidOption, match=r"^Selects.select: returned .*; expected a list of some of the ids"
        ):
            federation.round(1)
        strategy._selected = (A,)
        assert federation.round(1).clients == (A,)


def test_a_client_that_is_tried_again_may_be_selected_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy may select by `properties`, which has all clients."""

    def candidates(self: object, members: Collection[Member], least: int, *, again: bool = False) -> Candidates:
        return Candidates([each for each in members if each.id == A], [each for each in members if each.id == B])

    with Federation(strategy=Selects(A, B), min_clients=1) as federation:
        federation.join(A, gives(4))
        federation.join(B, gives(4))
        monkeypatch.setattr(Standing, "candidates", candidates)
        assert A in federation.round(2).clients


def test_the_server_logs_that_it_waits_for_min_clients(log_lines: LogLines) -> None:
    with Federation(min_clients=2) as federation:
        report = federation.start(federation.server.round)
        log_lines.wait_for("waiting for clients: 0 of 2 are connected")
        federation.join(A, gives(2))
        log_lines.wait_for("waiting for clients: 1 of 2 are connected")
        federation.join(B, gives(4))
        assert set(report.result(SOON).clients) == {A, B}


def test_wait_ends_by_timeout_or_close() -> None:
    with Federation() as federation:
        with pytest.raises(TimeoutError, match="0 of 1 clients are connected after 0 s"):
            federation.server.wait(1, timeout=0)
        assert federation.server.wait(0, timeout=0) == ()
        with pytest.raises(netq.InvalidOption, match="wait: count: '3'; expected a whole number of 0 or more"):
            federation.server.wait("3")  # type: ignore[arg-type]
        waiting = federation.start(federation.server.round)
        federation.server.close()
        with pytest.raises(netq.Closed, match="this server is closed"):
            waiting.result(SOON)
        federation._runs.remove(waiting)
        with pytest.raises(netq.Closed):
            federation.server.round()


def test_close_ends_a_running_round() -> None:
    training, free = threading.Event(), threading.Event()

    def train(model: Any, config: Mapping[str, Any]) -> Update:
        training.set()
        free.wait(SOON)
        return Update(model, 1)

    with Federation(min_clients=1) as federation:
        run = federation.join(A, train)
        running = federation.start(federation.server.round)
        assert training.wait(SOON)
        federation.start(federation.server.close)
        with pytest.raises(netq.Closed):
            running.result(SOON)
        federation._runs.remove(running)
        assert not run.done()
        free.set()


def test_clients_of_a_failed_server_join_the_next() -> None:
    first = fl.Server(zeros(), at(netq.NetworkLocation("127.0.0.1", 0)), min_clients=1)
    with ThreadPoolExecutor() as pool:
        run = pool.submit(fl.Client(gives(3.0)).run, at(first.netloc))
        first.wait(1, SOON)
        first.__exit__(LookupError, LookupError("a bug of the script"), None)
        with fl.Server(zeros(), at(first.netloc), min_clients=1) as second:
            second.wait(1, SOON)
            assert len(second.round().clients) == 1
        run.result(SOON)


class FailsOnce(fl.FedAvg):
    """A strategy with a bug, or a full disk."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._errors = [error]

    def finish(self, model: Any, *, number: int) -> Any:
        if self._errors:
            raise self._errors.pop()
        return super().finish(model, number=number)


@pytest.mark.parametrize(("error", "raised"), [(LookupError("a bug"), False), (OSError("full"), True)])
def test_updates_of_a_failed_round_are_dropped(error: Exception, raised: bool) -> None:
    values = iter([100.0, 1.0])
    with Federation(strategy=FailsOnce(error), min_clients=1) as federation:
        federation.join(A, lambda model, config: fl.Update(filled(next(values)), 1))
        federation.server.wait(1, SOON)
        with pytest.raises(OSError, match="full") if raised else contextlib.nullcontext():
            assert federation.server.round().failures[A].why is fl.FailureKind.VOID
        federation.round(1)
        assert set(federation.w) == {1.0}


class Grows(fl.FedAvg):
    """FedAvg with a model that has another shape after each round."""

    def finish(self, model: Any, *, number: int) -> dict[str, Any]:
        return {"w": np.append(super().finish(model, number=number)["w"], np.float32(0))}


def stalls(train: Train, caplog: pytest.LogCaptureFixture, **settings: Any) -> str:
    """The error of rounds that never count, and the warnings of what all clients fail of."""
    with Federation(void_pause=0, **settings) as federation:
        for id in (A, B):
            federation.join(id, train)
        with pytest.raises(fl.FederationStalled) as caught:
            for _ in federation.server.rounds(3):
                pass
    warnings = [each.getMessage() for each in caplog.records if "all clients fail for one" in each.getMessage()]
    assert len(warnings) <= 1
    return "\n".join([*warnings, str(caught.value)])


@pytest.mark.parametrize(
    ("train", "strategy", "reason"),
    [
        (lambda model, config: model, fl.FedAvg(), "TypeError: <lambda> returned dict; expected fl.Update"),
        (gives(1), fl.FedNova(), "steps"),
        (gives(1), Grows(), "what Grows came to is no model"),
        (gives(math.nan), fl.FedAvg(), "NaN"),
    ],
)
def test_mistake_of_all_clients_is_told_at_once_and_stalls_soon(
    train: Train, strategy: fl.Strategy, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    warning, error = stalls(train, caplog, strategy=strategy).split("\n")
    assert reason in warning
    assert error.startswith("round 1 did not count 6 times in a row (each time for the same reason)")


@pytest.mark.parametrize(("works", "number"), [(1, 2), (0, 1)])
def test_federation_that_has_worked_or_fails_in_many_ways_gets_all_attempts(
    works: int, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def train(model: Any, config: Mapping[str, Any]) -> Update:
        calls.append(config["round"])
        if config["round"] > works:
            raise OSError("share away" if works else f"call {len(calls)}")
        return Update(model, 1)

    error = stalls(train, caplog).split("\n")[-1]
    assert error.startswith(f"round {number} did not count 10 times in a row (void_rounds)")


@pytest.mark.parametrize("count", ["3", 2.5, None])
def test_wrong_number_of_rounds_is_refused(count: Any) -> None:
    with Federation() as federation, pytest.raises(netq.InvalidOption, match=r"rounds: .*; expected a whole number"):
        next(federation.server.rounds(count))


@pytest.mark.parametrize("wrong", [{"\ud800": 1.0}, {str(number): 1.0 for number in range(1001)}, {7: 1.0}])
def test_harmful_names_of_metrics_are_refused(wrong: Any) -> None:
    with pytest.raises(fl.InvalidUpdate, match="metrics"):
        fl.Report(1, wrong)


@pytest.mark.parametrize("number", [-1, 2**63, pytest.param(10**5000, id="huge")])
def test_round_numbers_are_bounded(number: int) -> None:
    with pytest.raises(fl.InvalidUpdate, match="round"):
        Job(1, number, "train")


def test_a_new_client_takes_part_in_the_next_round() -> None:
    with Federation(min_clients=1) as federation:
        federation.join(A, gives(2))
        assert federation.round(1).clients == (A,)
        federation.join(B, gives(4))
        assert set(federation.round(2).clients) == {A, B}
        assert federation.w == [3] * 3


def test_a_client_that_joins_during_a_round_changes_nothing() -> None:
    with Federation(min_clients=1) as federation:

        def train(model: Any, config: Mapping[str, Any]) -> Update:
            if config["round"] == 1:
                federation.join(B, gives(4))
                federation.server.wait(2, SOON)
            return Update(filled(2), 1)

        federation.join(A, train)
        assert federation.round(1).clients == (A,)
        assert federation.w == [2] * 3
        assert set(federation.round(2).clients) == {A, B}


@pytest.mark.slow
def test_a_client_that_has_left_before_its_first_round_is_not_asked() -> None:
    """It may be a stranger, for whom each round would wait `grace`."""
    with Federation(grace=6 * SOON) as federation, Proxy(federation.server.netloc) as proxy:
        federation.join(A, gives(2))
        federation.join(B, gives(4))
        options = replace(at(proxy.netloc, C), serialization=MESSAGES)
        with netq.new(purpose=netq.Purpose.CLIENT, options=options) as queue:
            queue.put(Introduction({}))
            federation.server.wait(3, SOON)
            proxy.refusing = True
            proxy.cut()
            while C in federation.server.clients:
                threading.Event().wait(0.01)
            report = federation.round(2)
            assert (set(report.clients), report.failures) == ({A, B}, {})
            proxy.refusing = False


def test_a_client_may_start_before_the_server() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        netloc = netq.NetworkLocation(*taken.getsockname())
    seeks = LogLines()
    logging.getLogger("netq").addHandler(seeks)
    with ThreadPoolExecutor() as pool:
        run = pool.submit(fl.Client(gives(2)).run, at(netloc, A))
        seeks.wait_for("trying again")
        logging.getLogger("netq").removeHandler(seeks)
        with Federation(min_clients=1, port=netloc.port) as federation:
            assert federation.round(1).clients == (A,)
        run.result(SOON)


def test_user_events_are_called() -> None:
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    went: queue.SimpleQueue[Any] = queue.SimpleQueue()
    options = netq.CommunicatorOptions(
        netloc=netq.NetworkLocation("127.0.0.1", 0), events=netq.EventOptions(came.put, went.put)
    )
    with ThreadPoolExecutor() as pool, fl.Server(zeros(), options) as server:
        run = pool.submit(fl.Client(gives(1)).run, at(server.netloc, A))
        assert came.get(timeout=SOON) == A
        server.close()
        assert went.get(timeout=SOON) == A
        run.result(SOON)


@pytest.mark.parametrize(
    "wrong",
    [{"min_clients": 0}, {"min_clients": -1}],
    ids=str,
)
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(netq.InvalidOption, match=rf"Server\..*{next(iter(wrong))}"):
        fl.Server(zeros(), at(netq.NetworkLocation("127.0.0.1", 0)), **wrong)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"w": np.array(["text"])}, "'w': str128 has no mean"),
        ({"w": [0.0]}, "'w': a list"),
        (filled(math.nan), "'w' holds NaN"),
    ],
    ids=["text", "list", "NaN"],
)
def test_a_model_without_a_mean_is_refused(model: Any, reason: str) -> None:
    with pytest.raises(fl.InvalidUpdate, match=reason):
        fl.Server(model, at(netq.NetworkLocation("127.0.0.1", 0)))


# Clients that are left out.


def _raises(model: Any, config: Mapping[str, Any]) -> Update:
    raise ValueError("no data on this device")


def _update(model: Any, number: Any = 1, metrics: Any = None) -> Train:
    return lambda _, config: Update(model, number, metrics or {})


BAD_TRAIN: dict[str, tuple[Train, str]] = {
    "raises": (_raises, "^ValueError: no data on this device$"),
    "nothing": (lambda model, config: None, "returned NoneType; expected fl.Update"),
    "the model": (lambda model, config: model, "returned dict; expected fl.Update"),
    "a report": (lambda model, config: Report(1), "returned Report; expected fl.Update"),
    "wrong shape": (_update({"w": np.zeros(4, np.float32)}), r"'w' is float32 of shape \(4,\); expected .*\(3,\)"),
    "would broadcast": (_update({"w": np.zeros((), np.float32)}), r"'w' is float32 of shape \(\); expected"),
    "wrong dtype": (_update({"w": np.zeros(3)}), "'w' is float64 of .*; expected float32"),
    "no key": (_update({}), "'w' is missing"),
    "another key": (_update({**zeros(), "b": np.zeros(1)}), "'b' is unexpected"),
    "a key of bytes": (_update({**zeros(), b"b": np.zeros(1)}), "b'b' as a key; expected a text"),
    "a list": (_update({"w": [0.0, 0.0, 0.0]}), "'w': a list; expected a numpy array"),
    "no dict": (_update([np.zeros(3)]), "model: list .*expected a dict"),
    "NaN": (_update({"w": np.array([1, math.nan, 1], np.float32)}), "'w' holds NaN or infinity"),
    "infinity": (_update({"w": np.array([1, 1, -math.inf], np.float32)}), "'w' holds NaN or infinity"),
    "-5 examples": (gives(9, -5), "num_examples: int -5; expected"),
    "True examples": (gives(9, True), "num_examples: bool True; expected"),
    "1.5 examples": (_update(filled(9), 1.5), "num_examples: float 1.5; expected"),
    "text metric": (_update(filled(9), 1, {"loss": "low"}), r"metrics\['loss'\]: str 'low'; expected a number"),
    "a function": (_update({"w": lambda: None}), "its answer cannot be sent: .*'w': a builtins.function"),
    "objects": (_update({"w": np.array([1, None, 1])}), "'w': a numpy.ndarray of dtype object; expected"),
    "masked": (_update({"w": np.ma.zeros(3, np.float32)}), "'w': a masked array; expected one without a mask"),
}


@pytest.mark.parametrize("case", BAD_TRAIN)
def test_a_failing_client_is_left_out(case: str) -> None:
    train, reason = BAD_TRAIN[case]

    def at_first(model: Any, config: Mapping[str, Any]) -> Any:
        return train(model, config) if config["round"] == 1 else Update(filled(7), 2)

    with Federation() as federation:
        federation.join(A, gives(2))
        federation.join(B, gives(4))
        federation.join(C, at_first)
        assert_left_out(federation, reason)


def assert_left_out(federation: Federation, reason: str) -> None:
    """C is left out of the first round alone, for that reason, and takes part in the second."""
    report = federation.round(3)
    assert set(report.clients) == {A, B}
    assert list(report.failures) == [C]
    assert re.search(reason, reasons(report)[C]), reasons(report)[C]
    assert federation.w == [3] * 3
    report = federation.round(3)
    assert (set(report.clients), report.failures) == ({A, B, C}, {})
    assert federation.w == [5] * 3


class Call:
    """Pickled as a call of `function`."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._reduced = (function, args)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


def content(task: Task, content: Any) -> dict[str, Any]:
    """A reply that a peer made itself."""
    return {"type": "Reply", "job": [task.job.run, task.job.round, task.job.purpose], "content": content}


MARK = "executed"
BAD_ANSWER: dict[str, tuple[Callable[[Task], Any], str]] = {
    "a pickle": (lambda task: bytes(PickleSerializer().dump(Call(eval, f"open('{MARK}', 'w')"))), "cannot be loaded"),
    "a text": (lambda task: "hello", "a message: str 'hello'; expected an object whose type is Task or"),
    "None": (lambda task: None, "a message: NoneType None; expected"),
    "the task": (lambda task: task, "it sent a Task; expected a Reply"),
    "an update": (lambda task: {"type": "Update", "model": filled(9), "num_examples": 1}, "a message: dict"),
    "garbage": (lambda task: b"\xff" * 100, "its message cannot be read"),
    "no bytes": (lambda task: b"", "its message cannot be read"),
    "a report": (lambda task: reply(task, Report(1)), "it answered with Report; expected Update"),
    "no content": (lambda task: content(task, 5), "content: int 5; expected"),
    "-5 examples": (
        lambda task: content(task, {"type": "Update", "model": filled(9), "num_examples": -5}),
        "num_examples: int -5",
    ),
    "an array for a purpose": (
        lambda task: {**content(task, "x"), "job": [1, 1, np.array([1, 2])]},
        "purpose: .*expected train or evaluate",
    ),
    "a future round": (
        lambda task: Reply(replace(task.job, round=task.job.round + 1), Update(filled(9), 1)),
        r"it answered round 2 \(train\); expected round 1 \(train\)",
    ),
    "a failure": (lambda task: reply(task, "x" * 5000), "^x{500}…$"),
}


@pytest.mark.parametrize("case", BAD_ANSWER)
def test_a_client_with_an_invalid_reply_is_left_out(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, reason = BAD_ANSWER[case]
    monkeypatch.chdir(tmp_path)

    def at_first(task: Task) -> Sequence[Any]:
        return [answer(task) if task.job.round == 1 else reply(task, Update(filled(7), 2))]

    with Federation() as federation:
        federation.join(A, gives(2))
        federation.join(B, gives(4))
        federation.join_raw(C, at_first)
        assert_left_out(federation, reason)
    assert not (tmp_path / MARK).exists()


def test_a_second_reply_does_not_count() -> None:
    tasks: list[Task] = []

    def answer(task: Task) -> Sequence[Any]:
        tasks.append(task)
        again = [reply(tasks[0], Update(filled(100), 1))] if len(tasks) == 2 else []
        return [*again, reply(task, Update(filled(4), 1))]

    with Federation(min_clients=1) as federation:
        federation.join(A, gives(2))
        federation.join_raw(B, answer)
        report = federation.round(2)
        assert (set(report.clients), report.failures) == ({A, B}, {})
        assert federation.w == [3] * 3
        report = federation.round(2)
        assert report.failures[B].why is fl.FailureKind.INVALID
        assert reasons(report) == {B: "it answered round 1 (train); expected round 2 (train)"}
        assert federation.w == [2] * 3


WRONG_JOBS: dict[str, tuple[Callable[[Job], Job], str]] = {
    "an older round": (lambda job: replace(job, round=job.round - 1), "round 1 (train)"),
    "a later round": (lambda job: replace(job, round=job.round + 1), "round 3 (train)"),
    "another purpose": (lambda job: replace(job, purpose="evaluate"), "round 2 (evaluate)"),
    "another run": (lambda job: replace(job, run=job.run ^ 1), "round 2 (train) of another server"),
    "a later round of another run": (lambda job: Job(job.run ^ 1, 9, "train"), "round 9 (train) of another server"),
}


@pytest.mark.parametrize("case", WRONG_JOBS)
def test_an_answer_to_another_task_is_refused_at_once(case: str) -> None:
    wrong, name = WRONG_JOBS[case]

    def answer(task: Task) -> Sequence[Any]:
        right = task.job.round == 1
        return [Reply(task.job if right else wrong(task.job), Update(filled(6), 1))]

    with Federation(min_clients=1) as federation:
        federation.join(A, gives(2))
        federation.join_raw(B, answer)
        assert set(federation.round(2).clients) == {A, B}
        report = federation.round(2)  # much sooner than its deadline
        assert report.failures[B].why is fl.FailureKind.INVALID
        assert reasons(report) == {B: f"it answered {name}; expected round 2 (train)"}
        assert federation.w == [2] * 3


def test_the_first_answer_may_be_to_the_server_before() -> None:
    def answer(task: Task) -> Sequence[Any]:
        old = Reply(Job(task.job.run ^ 1, 9, "train"), Update(filled(100), 1))
        return [*([old] if task.job.round == 1 else []), reply(task, Update(filled(4), 1))]

    with Federation() as federation:
        federation.join(A, gives(2))
        federation.join_raw(B, answer)
        for _ in range(2):
            assert federation.round(2).failures == {}
            assert federation.w == [3] * 3


@pytest.mark.parametrize(("bound", "mean"), [(None, 8.0), (1, 4.0), ("equal", 4.0), (2, 5.0)])
def test_claimed_numbers_of_examples_are_bounded(bound: Any, mean: float) -> None:
    with Federation(strategy=fl.FedAvg(max_examples=bound)) as federation:
        for client, value in ((A, 1), (B, 3)):
            federation.join(client, gives(value, 1))
        federation.join(C, gives(8, 2**53))
        assert set(federation.round(3).clients) == {A, B, C}
        assert federation.w == pytest.approx([mean] * 3)


def test_a_client_with_most_of_the_examples_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with Federation() as federation:
        for client, number in ((A, 1), (B, 1), (C, 8)):
            federation.join(client, gives(1, number))
        for _ in range(3):
            assert federation.round(3).shares == {C: 0.8}
    lines = [line for line in caplog.messages if "of the examples" in line]
    assert lines == [f"{title(C)}: claims 80 % of the examples of the round; the strategy's max_examples bounds that"]


def test_the_report_has_the_metrics_of_each_client() -> None:
    with Federation(evaluate=True) as federation:
        for client, loss in ((A, 1.0), (B, 3.0)):
            federation.join(
                client, gives(1, 1, loss=loss), lambda model, config, loss=loss: Report(1, {"accuracy": loss / 4})
            )
        report = federation.round(2)
    assert report.client_metrics == {A: {"loss": 1.0}, B: {"loss": 3.0}}
    assert report.client_evaluation == {A: {"accuracy": 0.25}, B: {"accuracy": 0.75}}
    assert (report.metrics, report.evaluation) == ({"loss": 2.0}, {"accuracy": 0.5})


@pytest.mark.slow
def test_a_straggler_is_left_out_and_its_late_update_ignored(log_lines: LogLines) -> None:
    training, free = threading.Event(), threading.Event()

    def slow(model: Any, config: Mapping[str, Any]) -> Update:
        if config["round"] == 1:
            training.set()
            free.wait(SOON)
            return Update(filled(100), 1)
        return Update(filled(6), 1)

    with Federation(deadline=SHORT) as federation:
        federation.join(A, gives(2))
        federation.join(B, gives(4))
        federation.join(C, slow)
        report = federation.round(3)
        assert training.is_set()
        assert SHORT <= report.seconds < SHORT + 1
        assert set(report.clients) == {A, B}
        assert reasons(report) == {C: f"no answer within {SHORT:g} s (deadline)"}
        assert federation.w == [3] * 3

        federation.set_deadline(3 * SOON)
        free.set()
        report = federation.round(3)
        log_lines.wait_for(rf"{title(C)}: its answer to round 1 \(train\) is not waited for")
        assert (set(report.clients), report.failures) == ({A, B, C}, {})
        assert federation.w == [4] * 3


@pytest.mark.slow
def test_clients_failures_and_skips_cover_the_asked_clients() -> None:
    free = threading.Event()

    def slow(model: Any, config: Mapping[str, Any]) -> Update:
        free.wait(SOON)
        return Update(model, 1)

    trains = [gives(1), gives(2, 0), slow, _raises, gives(math.nan), gives(4), gives(3)]
    ids = [uuid.UUID(int=n) for n in range(1, 8)]
    with Federation(deadline=SHORT, strategy=Selects(*ids[:6])) as federation:
        for id, train in zip(ids, trains, strict=True):
            federation.join(id, train)
        report = federation.round(7)
        free.set()
    assert set(report.clients) == {ids[0], ids[5]}
    assert set(report.failures) == set(ids[2:5])
    assert set(report.skipped) == {ids[1]}
    assert len(report.clients) == 2


def test_too_few_valid_updates_leave_the_model_unchanged() -> None:
    values = iter((math.nan, 4))

    def at_first(model: Any, config: Mapping[str, Any]) -> Update:
        return Update(filled(next(values)), 1)

    with Federation(evaluate=True) as federation:
        federation.join(A, gives(2, 1, loss=1.0), lambda model, config: Report(1, {"accuracy": 1.0}))
        federation.join(B, at_first)
        before = federation.server.model
        report = federation.round(2)
        assert federation.server.model is before
        assert federation.w == [0] * 3
        assert report.clients == ()
        assert reasons(report)[A] == "the round does not count: 1 updates of 2"
        assert "NaN" in reasons(report)[B]
        assert (report.metrics, report.evaluation) == ({}, {})
        assert (report.number, report.attempt, federation.server.number) == (1, 1, 0)
        report = federation.round(2)
        assert (report.number, report.attempt, federation.server.number) == (1, 2, 1)
        assert federation.w == [3] * 3  # of the update that did not count, nothing is left


def test_an_error_in_fold_loses_one_update() -> None:
    class Stumbles(fl.FedAvg):
        def fold(self, model: Any, update: Update, *, client: uuid.UUID, staleness: int = 0) -> None:
            if update.num_examples == 13:
                raise ZeroDivisionError("a bug of the user's")
            super().fold(model, update, client=client, staleness=staleness)

    with Federation(strategy=Stumbles()) as federation:
        federation.join(A, gives(2))
        federation.join(B, gives(4))
        federation.join(C, gives(100, 13))
        report = federation.round(3)
        assert set(report.clients) == {A, B}
        assert report.failures == {
            C: fl.ClientFailure(
                fl.FailureKind.ERROR, "the strategy could not fold it: ZeroDivisionError: a bug of the user's"
            )
        }
        assert federation.w == [3] * 3


def test_a_task_too_large_for_a_client_fails_at_once() -> None:
    narrow = netq.ConnectionOptions(message_size=1000, linger=SHORT)
    with Federation({"w": np.zeros(1000, np.float32)}, min_clients=1) as federation:
        federation.join(A, lambda model, config: Update(model, 1))
        federation.join(B, lambda model, config: Update(model, 1), connection=narrow)
        report = federation.round(2)
    assert report.clients == (A,)
    assert re.search("the task has .* it takes 1000 at most", reasons(report)[B])


def test_an_update_too_large_for_the_server_fails_at_once() -> None:
    narrow = netq.ConnectionOptions(message_size=10_000, linger=SHORT)
    with Federation(connection=narrow, min_clients=1) as federation:
        federation.join(A, gives(2))
        federation.join(B, _update({"w": np.zeros(10_000, np.float32)}))
        report = federation.round(2)
    assert report.clients == (A,)
    assert re.search("its answer cannot be sent: .*at most 10000", reasons(report)[B])


# Clients that leave and return.


def test_a_client_that_leaves_during_a_round_is_lost() -> None:
    with Federation(min_clients=1, grace=3 * SOON) as federation:
        federation.join(A, gives(2))
        federation.start(_leaves, at(federation.server.netloc, B), [])
        report = federation.round(2)
        assert (report.clients, reasons(report)) == ((A,), {B: "it has gone"})
        assert federation.w == [2] * 3


def test_an_update_counts_after_its_client_has_left() -> None:
    gone = threading.Event()

    def train(model: Any, config: Mapping[str, Any]) -> Update:
        assert gone.wait(SOON)
        return Update(filled(2), 1)

    with Federation() as federation:
        federation.join(A, train)
        federation.start(_answers_and_leaves, at(federation.server.netloc, B)).add_done_callback(lambda _: gone.set())
        assert set(federation.round(2).clients) == {A, B}
        assert federation.w == [3] * 3


def _answers_and_leaves(options: netq.CommunicatorOptions) -> None:
    options = netq.CommunicatorOptions(options.id, options.netloc, options.connection, fl.messages.MESSAGES)
    with netq.new(options=options) as server:
        server.put(reply(server.get().data, Update(filled(4), 1)))


HANGS = """
import sys, threading, uuid
import fl, netq

def train(model, config):
    print("training", flush=True)
    threading.Event().wait()

netloc = netq.NetworkLocation("127.0.0.1", int(sys.argv[1]))
fl.Client(train).run(netq.CommunicatorOptions(id=uuid.UUID(sys.argv[2]), netloc=netloc))
"""

SERVES = """
import numpy as np
import fl, netq

options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
with fl.Server({"w": np.full(3, 100, np.float32)}, options) as server:
    print(server.netloc.port, flush=True)
    server.round()
"""


@contextmanager
def process(script: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, *map(str, args)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def line(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def kill(running: subprocess.Popen[str]) -> None:
    running.kill()
    running.wait(SOON)


@pytest.mark.slow
def test_a_killed_client_is_lost_after_grace_and_may_return() -> None:
    with (
        Federation(min_clients=1, grace=SHORT) as federation,
        process(HANGS, federation.server.netloc.port, B) as hangs,
    ):
        federation.join(A, gives(2))
        federation.server.wait(2, SOON)
        running = federation.start(federation.server.round)
        assert line(hangs) == "training"
        kill(hangs)
        report = running.result(SOON)
        assert report.clients == (A,)
        assert re.fullmatch(rf"no connection for \d\.\d s \(grace {SHORT} s\)", reasons(report)[B])
        federation.join(B, gives(4))
        assert set(federation.round(2).clients) == {A, B}
        assert federation.w == [3] * 3


def test_a_client_restarted_during_a_round_gets_the_task_again() -> None:
    with (
        Federation(min_clients=1, grace=3 * SOON) as federation,
        process(HANGS, federation.server.netloc.port, B) as hangs,
    ):
        federation.join(A, gives(2))
        federation.server.wait(2, SOON)
        running = federation.start(federation.server.round)
        assert line(hangs) == "training"
        kill(hangs)
        federation.join(B, gives(4))
        report = running.result(SOON)
        assert (set(report.clients), report.failures) == ({A, B}, {})
        assert federation.w == [3] * 3


def test_clients_outlive_a_killed_server() -> None:
    training, free = threading.Semaphore(0), threading.Event()

    def train(model: Any, config: Mapping[str, Any]) -> Update:
        training.release()
        free.wait(SOON)
        return Update({"w": model["w"] + 1}, 1)

    with ThreadPoolExecutor() as pool, process(SERVES) as serves:
        netloc = netq.NetworkLocation("127.0.0.1", int(line(serves)))
        runs = [pool.submit(fl.Client(train).run, at(netloc, id)) for id in (A, B)]
        for _ in runs:
            assert training.acquire(timeout=SOON)
        kill(serves)
        with Federation(port=netloc.port) as federation:
            federation.server.wait(2, SOON)
            free.set()  # their replies are to the first round of the killed server
            report = federation.round(2)
            assert (set(report.clients), report.failures) == ({A, B}, {})
            assert federation.w == [1] * 3
            federation.round(2)
            assert federation.w == [2] * 3
        for run in runs:
            run.result(SOON)


# Memory.


@pytest.mark.slow
@pytest.mark.usefixtures("own_garbage")
def test_memory_does_not_grow_with_rounds() -> None:
    def train(model: Any, config: Mapping[str, Any]) -> Update:
        return Update(model, 1)

    kept, peaks, resident = [], [], []
    with Federation({"w": np.zeros(2**18, np.float32)}, min_clients=3, evaluate=True) as federation:
        for id in IDS[:3]:
            federation.join(id, train, lambda model, config: Report(1, {"accuracy": 1.0}))
        tracemalloc.start()
        try:
            for _ in range(30):
                tracemalloc.reset_peak()
                assert len(federation.round(3).clients) == 3
                now, peak = tracemalloc.get_traced_memory()
                kept.append(now)
                peaks.append(peak)
                resident.append(_resident())
        finally:
            tracemalloc.stop()
    assert max(kept[10:]) - max(kept[:10]) < 2**17  # an eighth of one model, in 20 rounds
    assert max(peaks) < 6 * 2**20  # the sum, and the models of as many clients as train at one moment
    assert max(resident[10:]) - max(resident[:10]) < 10 * 2**20  # the memory of messages is none of Python's


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
