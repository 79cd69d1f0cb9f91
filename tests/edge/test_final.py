"""The last model of a federation is written to the owner's file, and the owner's command runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import edge
import netq
from edge import __main__ as command
from edge.agent import Agent
from edge.fitness import Fitness
from edge.group import Group
from edge.patience import Patience, Watched
from edge.supervisor import Supervisor
from edge.work import federation
from fl.envelope import Final
from fl.membership import Membership
from netq.utils.stream import Stream
from tests.edge.pauses import Pauses
from tests.edge.test_agent import HERE, config, running, server

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

    pauses = Pauses(path.parent.mkdir)
    with server() as aggregator:
        device = config(aggregator, model=path, training=edge.Limits(keep=True))
        supervisor = Supervisor()
        patience = Patience(supervisor, Watched(), pauses.clock, pauses.sleep)
        with running(Agent(device, federation(device), supervisor, Group(), patience).run):
            aggregator.round()
            aggregator.close()
    with np.load(path) as model:
        assert model["w"].tolist() == [1, 1, 1]
    assert "not taking part: model.path: the last model is not written: FileNotFoundError: " in caplog.text
    assert "going on after" in caplog.text


@pytest.mark.slow
def test_the_model_is_kept_while_the_owner_corrects_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, file = tmp_path / "gone", tmp_path / "client.toml"
    gone.mkdir()

    def write(port: int, folder: str) -> None:
        text = f'[server]\nhost = "127.0.0.1"\nport = {port}\n[client]\ntrain = "{HERE}:train"\n'
        file.write_text(text + f'[training]\nkeep = true\n[model]\npath = "{folder}/model.npz"\n')

    with server() as aggregator:
        port = aggregator.netloc.port
        write(port, "gone")
        pauses = Pauses(lambda: write(port, "."))
        monkeypatch.setattr(command, "Patience", partial(Patience, clock=pauses.clock, sleep=pauses.sleep))
        options = command._parser().parse_args(["run", str(file)])
        with running(command._run, options, Supervisor(), False):
            aggregator.round()
            gone.rmdir()
            aggregator.close()
    with np.load(tmp_path / "model.npz") as model:
        assert model["w"].tolist() == [1, 1, 1]


def test_a_device_that_is_not_fit_any_more_still_takes_the_model() -> None:
    """Its federation is over: there is no task that it would be given, and no other time to get the model."""
    membership, last = Membership("federation", None, [netq.NetworkLocation()]), Final(Stream())

    class Ends:
        is_sending, delivered, final = False, None, last

        def next_task(self, idle: Callable[[], float | None]) -> None:
            membership.over = True
            idle()

        def leave(self, reason: str) -> None:
            pytest.fail(reason)

    device = edge.Config(netq.NetworkLocation("127.0.0.1", 1), train=f"{HERE}:train", fit=Fitness(min_free_memory=1e9))
    work = federation(device)._replace(converse=lambda *_: Ends())  # type: ignore[arg-type]  # it gives no task
    agent = Agent(device, work, Supervisor(), Group(), Patience(Supervisor(), Watched()))
    agent._serve(None, membership)  # type: ignore[arg-type]  # `Ends` uses none
    assert agent.final is last
