"""What callbacks are told of a federation, and that it is none of theirs whether it goes well."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

import fl
from fl.callbacks.jsonl import Measured
from netq.testing.log import LogRecorder
from tests.fl.federation import A, B, C, Federation, gives

SIZE = 12  # bytes of a model


class Notes(fl.Callback):
    """Writes down all that it is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, set[uuid.UUID]]] = []
        self.states: list[tuple[uuid.UUID, fl.ClientState, int]] = []
        self.ended: list[tuple[fl.RoundReport, Any]] = []

    def round_begins(self, number: int, clients: Sequence[uuid.UUID]) -> None:
        self.begun.append((number, set(clients)))

    def client_is(self, client: uuid.UUID, state: fl.ClientState, size: int) -> None:
        self.states.append((client, state, size))

    def round_ends(self, report: fl.RoundReport, model: Any) -> None:
        self.ended.append((report, model))

    def of(self, client: uuid.UUID) -> list[tuple[fl.ClientState, int]]:
        return [(state, size) for peer, state, size in self.states if peer == client]


class Broken(fl.Callback):
    """Raises whatever it is told."""

    def round_begins(self, number: int, clients: Sequence[uuid.UUID]) -> None:
        raise RuntimeError("round_begins is broken")

    def client_is(self, client: uuid.UUID, state: fl.ClientState, size: int) -> None:
        raise RuntimeError("client_is is broken")

    def round_ends(self, report: fl.RoundReport, model: Any) -> None:
        raise RuntimeError("round_ends is broken")


def fails(model: Any, config: Any) -> Any:
    raise ValueError("no data")


def test_callback_receives_client_states() -> None:
    notes = Notes()
    with Federation(callbacks=[notes]) as federation:
        federation.join(A, gives(2))
        federation.join(B, gives(4))
        federation.join(C, fails)
        report = federation.round(3)
    assert notes.begun == [(1, {A, B, C})]
    assert notes.of(A)[0] == notes.of(C)[0] == (fl.ClientState.TRAINING, 0)
    assert notes.of(A)[-1] == notes.of(B)[-1] == (fl.ClientState.DONE, SIZE)
    assert notes.of(C)[-1] == (fl.ClientState.FAILED, 0)
    assert notes.ended[0][0] is report
    assert notes.ended[0][1]["w"].tolist() == [3.0] * 3


def test_raising_callback_changes_nothing(log: LogRecorder) -> None:
    notes = Notes()
    with Federation(callbacks=[Broken(), notes]) as federation:
        federation.join(A, gives(2))
        federation.join(B, gives(4))
        report = federation.round(2)
        assert federation.w == [3.0] * 3
    assert set(report.clients) == {A, B}
    assert report.failures == {}
    assert [number for number, _ in notes.begun] == [1]
    assert notes.ended[0][0] is report
    for name in ("round_begins", "client_is", "round_ends"):
        assert log.having(f"Broken.{name} failed")


def test_a_full_disk_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    class Full(fl.Callback):
        def round_ends(self, report: fl.RoundReport, model: Any) -> None:
            raise OSError(28, "No space left on device", "rounds.jsonl")

    with Federation(callbacks=[Full()], min_clients=1) as federation:
        federation.join(A, gives(2))
        assert federation.round(1).clients == (A,)
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert record.getMessage().endswith(
        "Full.round_ends failed: OSError: [Errno 28] No space left on device: 'rounds.jsonl'"
    )
    assert record.exc_info is None


def test_measured_adds_to_the_evaluation() -> None:
    notes = Notes()
    measured = Measured(lambda model: {"sum": float(model["w"].sum())}, [Broken(), notes])
    with Federation(callbacks=[measured], evaluate=True) as federation:
        for id in (A, B):
            federation.join(id, gives(2), lambda model, config: fl.Report(1, {"sum": 1.0}))
        report = federation.round(2)
    assert report.evaluation == {"sum": 1.0}
    assert notes.ended[0][0].evaluation == {"sum": 1.0, "server_sum": 6.0}
    assert notes.of(A)[0] == (fl.ClientState.TRAINING, 0)
    assert notes.begun == [(1, {A, B})]


def test_raising_measure_keeps_the_report(log: LogRecorder) -> None:
    notes = Notes()
    with Federation(
        callbacks=[Measured(lambda model: {"sum": float(model["x"].sum())}, [notes])], min_clients=1
    ) as federation:
        federation.join(A, gives(2))
        report = federation.round(1)
        assert federation.w == [2.0] * 3
    assert notes.ended[0][0] == report
    assert log.having("raised KeyError: 'x'")
