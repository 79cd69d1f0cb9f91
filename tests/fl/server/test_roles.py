"""Roles in a whole federation: what leaves a client, what a server keeps, sends and writes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
import netq
from fl.messages import Reply, Task, Update
from tests.fl.federation import A, B, Federation

INF = np.inf
LOCAL = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 0))
OWN = {"head.*": "local", "mask": "constant"}


def f4(*values: float) -> Any:
    return np.array(values, np.float32)


def model() -> dict[str, Any]:
    return {"w": f4(0, 0), "bn.running_var": f4(1), "head.w": f4(0), "mask": f4(0, -INF)}


def grows(model: Any, config: Mapping[str, Any]) -> Update:
    """The head counts the trainings of this client."""
    head = model.pop("head.w", f4(0)) + 1
    metrics = {"trainings": float(head[0]), "tensors": float(len(model))}
    return Update({**model, "w": model["w"] + 1, "bn.running_var": f4(0.1), "head.w": head}, 1, metrics)


@pytest.mark.parametrize("strategy", [fl.FedAvg(), fl.FedAdam(compression="int8"), fl.FedBuff(size=2), fl.FedMedian()])
def test_local_tensors_are_kept_by_their_clients(strategy: fl.Strategy, tmp_path: Path) -> None:
    path = tmp_path / "c"
    with Federation(model(), roles=OWN, strategy=strategy, checkpoint=path) as federation:
        federation.join(A, grows)
        federation.join(B, grows)
        for number in (1, 2, 3):
            report = federation.round(2)
            trainings = report.metrics["trainings"]
            assert trainings == number or (strategy.buffer and trainings > number)  # one client may be asked twice
            assert report.metrics["tensors"] == 3
        found = federation.server.model
    assert set(found) == {"w", "bn.running_var", "mask"}
    assert found["bn.running_var"].tolist() == f4(0.1).tolist()
    assert found["mask"].tolist() == [0, -INF]
    assert b"head.w" in path.read_bytes()  # its role
    resumed = fl.Server.resume(path, LOCAL, strategy=type(strategy)())
    try:
        assert set(resumed.model) == set(found)
    finally:
        resumed.close(0.0)


def test_a_resumed_server_knows_the_roles(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with Federation(model(), roles={**OWN, "w": "averaged"}, checkpoint=path) as federation:
        federation.join(A, grows)
        federation.join(B, grows)
        federation.round(2)
    for roles in (None, OWN):
        server = fl.Server.resume(path, LOCAL, roles=roles)
        assert server._federation.roles == {
            "w": "averaged",
            "bn.running_var": "averaged",
            "mask": "constant",
            "head.w": "local",
        }
        server.close(0.0)
    with pytest.raises(netq.InvalidOption, match=r"'head\.w' cannot be trained: it was local"):
        fl.Server.resume(path, LOCAL, roles={"head.w": "trained"})


def test_a_local_tensor_that_arrives_costs_its_client_the_round() -> None:
    def reveals(task: Task) -> list[Any]:
        return [Reply(task.job, Update({**task.model, "head.w": f4(7)}, 1))]

    with Federation(model(), roles=OWN, min_clients=1) as federation:
        federation.join(A, grows)
        federation.join_raw(B, reveals)
        report = federation.round(2)
        assert report.clients == (A,)
        assert "'head.w' is local, and has come" in str(report.failures[B])


def test_a_client_that_changes_a_constant_is_named() -> None:
    def changes(model: Any, config: Mapping[str, Any]) -> Update:
        return Update({**model, "mask": f4(0, 0)}, 1)

    with Federation(model(), roles=OWN, min_clients=1) as federation:
        federation.join(A, grows)
        federation.join(B, changes)
        report = federation.round(2)
        assert report.clients == (A,)
        assert "'mask' is constant, and training has changed it" in str(report.failures[B])


def test_the_server_says_what_its_tensors_are(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        fl.Server(model(), LOCAL, roles={"head.*": "local"}).close(0.0)
    assert (
        "tensors of the model: 1 trained, 1 averaged ('bn.running_var'), 1 constant ('mask'), 1 local ('head.w')"
        in caplog.text
    )


@pytest.mark.parametrize("roles", [{"heda.*": "local"}, {"head.*": "locale"}, {"mask": "trained"}])
def test_a_server_refuses_bad_roles_before_it_listens(roles: dict[str, str]) -> None:
    with pytest.raises((fl.InvalidUpdate, ValueError), match=r"roles|'mask' holds NaN or infinity"):
        fl.Server(model(), LOCAL, roles=roles)


def test_simulate_takes_roles() -> None:
    result = fl.simulate(model(), [grows] * 3, rounds=2, roles=OWN, processes=2)
    assert set(result.model) == {"w", "bn.running_var", "mask"}
    assert [report.metrics["trainings"] for report in result.reports] == [1, 2]


def test_a_model_of_statistics_only_is_averaged() -> None:
    with Federation({"running_mean": f4(0)}) as federation:
        for id, value in ((A, 1), (B, 2)):
            federation.join(id, lambda model, config, value=value: Update({"running_mean": f4(value)}, 1))  # type: ignore[misc]
        federation.round(2)
        assert federation.server.model["running_mean"].tolist() == [1.5]
