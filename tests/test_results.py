"""The published results of docs/reference/results.md that take seconds (benchmarks/results)."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.results import fednova, pfedme, qffl


@pytest.mark.parametrize("name", fednova.STRATEGIES)
def test_fednova_case_study_meets_its_fixed_points(name: str) -> None:
    given = fednova.problem((0.05,))
    assert np.abs(fednova.converge(given, name) - given.fixed_point(name)).max() < 1e-10


def test_fednova_by_progress_meets_the_optimum() -> None:
    given = fednova.problem((0.01, 0.05))
    to_optimum = {name: np.linalg.norm(given.fixed_point(name) - given.optimum()) for name in fednova.STRATEGIES}
    assert to_optimum["FedNova, by progress"] < 1e-15 < to_optimum["FedNova"] < to_optimum["FedAvg"]


def test_fixed_points_near_those_of_lemma_1_for_small_rates() -> None:
    for name in fednova.STRATEGIES:
        given = fednova.problem((1e-9,))
        assert np.linalg.norm(given.fixed_point(name) - given.limit(name)) < 1e-7


def test_pfedme_prints_its_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pfedme, "CLIENTS", 2 * pfedme.COUNTED)
    pfedme.main(rounds=1, runs=1)
    assert "pFedMe, personal | " in capsys.readouterr().out


def test_qffl_prints_its_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(qffl, "CLIENTS", 2 * qffl.SELECTED)
    qffl.main(rounds=1, runs=1)
    assert "\n1.0 | " in capsys.readouterr().out
