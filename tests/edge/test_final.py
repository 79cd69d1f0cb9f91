"""The last model of a federation is written to the owner's file, and the owner's command runs."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pytest

import edge
from edge.agent import Agent
from edge.group import Group
from edge.patience import Patience, Watched
from edge.supervisor import Supervisor
from edge.work import federation
from tests.edge.test_agent import config, running, server

COPY = [sys.executable, "-c", "import shutil, sys; shutil.copy(sys.argv[2], sys.argv[1])"]


@pytest.mark.slow
def test_the_last_model_is_written_and_the_hook_gets_its_path(tmp_path: Path) -> None:
    path, copy = tmp_path / "model.npz", tmp_path / "copy.npz"
    start = {"w": np.zeros(3, np.float32), "head": np.zeros(2, np.float32)}
    with server(start, roles={"head": "local"}) as aggregator:
        device = config(aggregator, "keeps_a_head", state=tmp_path / "state", model=path, hook=(*COPY, str(copy)))
        with running(edge.run, device):
            list(aggregator.rounds(2))
            aggregator.close()
    for each in (path, copy):
        with np.load(each) as model:
            assert {name: model[name].tolist() for name in model} == {"w": [2, 2, 2], "head": [2, 2]}


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "later" / "model.npz"

    def mounts(seconds: float) -> None:
        path.parent.mkdir(exist_ok=True)

    with server() as aggregator:
        device = config(aggregator, model=path)
        supervisor = Supervisor()
        patience = Patience(supervisor, Watched(), sleep=mounts)
        with running(Agent(device, federation(device), supervisor, Group(), patience).run):
            aggregator.round()
            aggregator.close()
    with np.load(path) as model:
        assert model["w"].tolist() == [1, 1, 1]
    assert "not taking part: model.path: the last model is not written: FileNotFoundError: " in caplog.text
    assert "going on after" in caplog.text
