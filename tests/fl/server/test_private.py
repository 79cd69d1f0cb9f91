"""Differential privacy over a network: the model has noise, the reports epsilon, and the rounds end in time."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
import netq
from fl.callbacks.jsonl import record, scalars
from fl.privacy.accountant import of_gaussian
from fl.server.checkpoint import load
from tests.fl.aggregation.test_update_store import disk_of
from tests.fl.federation import A, B, Federation, at
from tests.fl.server.test_masked import IDS

LITTLE = fl.DifferentialPrivacy(clip=10.0, noise_multiplier=0.01, delta=1e-3)  # it hides nothing: epsilon is infinite
LOCAL = at(netq.NetworkLocation("127.0.0.1", 0))


def model() -> dict[str, Any]:
    return {"w": np.zeros((30, 20), np.float32), "v": np.zeros(9)}


def adds(value: float, number: int = 1) -> Any:
    return lambda model, config: fl.Update(
        {name: each + value for name, each in model.items()}, number, {"loss": value}
    )


@contextmanager
def federation(privacy: Any, clients: int = 4, **settings: Any) -> Iterator[Federation]:
    with Federation(model(), privacy=privacy, min_clients=clients, **settings) as found:
        for number, id in enumerate(IDS[:clients]):
            found.join(id, adds(0.1 * (number + 1), 10**number))
        yield found


def test_all_clients_weigh_the_same() -> None:
    with federation(LITTLE) as found:
        report = found.round(4)
        assert found.server.model["w"] == pytest.approx(np.full((30, 20), 0.25), abs=12 * 0.1 / 4)
        assert np.std(found.server.model["w"]) > 0.1 / 4 / 3
        assert found.server.model["w"].dtype == np.float32
    assert report.privacy == fl.PrivacySpent(math.inf, 1e-3, 1, 0.01, sampling=1.0, clip=10.0, trusts_server=True)
    assert "epsilon" in str(report)
    assert "at delta 0.001" in str(report)
    assert scalars(report)["epsilon"] == report.privacy.epsilon
    written = json.loads(json.dumps(record(report), allow_nan=False))["privacy"]
    assert (written["rounds"], written["epsilon"]) == (1, None)  # of infinity


def test_one_client_moves_the_model_by_its_clip_at_most() -> None:
    with federation(fl.DifferentialPrivacy(clip=1.0, noise_multiplier=1e-3), 3) as found:
        found.join(IDS[3], adds(1e6))
        found.round(4)
        moved = np.concatenate([each.ravel() for each in found.server.model.values()])
        assert np.linalg.norm(moved) < 1.01


def test_the_optimizers_of_the_server_go_on_from_the_mean() -> None:
    with federation(LITTLE, strategy=fl.FedAvgM(learning_rate=0.5, momentum=0.0)) as found:
        found.round(4)
        assert found.server.model["w"] == pytest.approx(np.full((30, 20), 0.125), abs=12 * 0.1 / 8)


def test_the_rounds_end_before_the_budget_is_exceeded(caplog: pytest.LogCaptureFixture) -> None:
    privacy = fl.DifferentialPrivacy(clip=1.0, noise_multiplier=2.0, max_epsilon=4.0)
    with federation(privacy) as found:
        reports = list(found.server.rounds(10))
        assert [report.number for report in reports] == [1, 2, 3]
        assert found.server.is_over
        with pytest.raises(fl.PrivacyBudgetSpent, match="the model is final"):
            found.server.round()
        assert list(found.server.rounds(1)) == []
    assert "the rounds end after round 3: one more would exceed max_epsilon" in caplog.text


def test_the_ledger_is_in_the_checkpoint_before_a_model_leaves(tmp_path: Path) -> None:
    path = tmp_path / "c"
    seen: list[int] = []

    class Looks(fl.Callback):
        def round_ends(self, report: fl.RoundReport, model: Any) -> None:
            seen.append(load(path)["privacy"]["ledger"][0][3])

    with federation(LITTLE, checkpoint=path, callbacks=[Looks()]) as found:
        found.round(4)
        found.round(4)
    assert seen == [1, 2]
    with fl.Server.resume(path, LOCAL, privacy=LITTLE) as server:
        assert server._federation.spent is not None
        assert server._federation.spent.rounds == 2
    with pytest.raises(fl.CheckpointError, match="its rounds had noise, and the next ones would have none"):
        fl.Server.resume(path, LOCAL)
    path.write_bytes(b"damaged")
    with fl.Server.resume(path, LOCAL, privacy=LITTLE) as server:  # of the one before, and one that may have left
        assert server.number == 1
        assert server._federation.spent is not None
        assert server._federation.spent.rounds == 2


def test_a_ledger_is_not_written_over_by_a_new_federation(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with federation(LITTLE, checkpoint=path) as found:
        found.round(4)
        found.round(4)
        id = found.server._members.queue.id
    for options in (LOCAL, at(netq.NetworkLocation("127.0.0.1", 0), id)):
        with pytest.raises(fl.CheckpointError, match=r"the ledger of 2 rounds with noise.*fl.Server.resume goes on"):
            fl.Server(model(), options, privacy=LITTLE, checkpoint=path)
    with fl.Server.resume(path, LOCAL, privacy=LITTLE) as server:
        assert server.number == 2


def test_rounds_that_do_not_fit_into_the_budget_are_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    privacy = fl.DifferentialPrivacy.for_rounds(2, 4.0, clip=1.0)
    with federation(privacy) as found:
        list(found.server.rounds(2))
        assert "early" not in caplog.text
        assert found.server.is_over
    with federation(privacy) as found:
        list(found.server.rounds(3))
    assert "max_epsilon=4 ends these 3 rounds early: all of them would have epsilon 5.06" in caplog.text


def test_a_larger_budget_goes_on(tmp_path: Path) -> None:
    privacy = fl.DifferentialPrivacy(clip=1.0, noise_multiplier=2.0, max_epsilon=4.0)
    with federation(privacy, checkpoint=tmp_path / "c") as found:
        list(found.server.rounds(10))
        assert found.server.is_over
    with fl.Server.resume(tmp_path / "c", LOCAL, privacy=privacy) as server:
        assert server.is_over
    with fl.Server.resume(tmp_path / "c", LOCAL, privacy=replace(privacy, max_epsilon=8.0)) as server:
        assert not server.is_over
        assert server.number == 3


def test_the_log_says_what_the_noise_comes_to(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), federation(LITTLE) as found:
        found.round(4)
        found.round(4)
    assert caplog.text.count("noise: the mean of a round of 4 clients has some of norm 0.617; a change has 10") == 1
    assert "noise_multiplier=0.01 is too little: no epsilon holds" in caplog.text


def test_a_federation_without_noise_cannot_have_it_later(tmp_path: Path) -> None:
    with federation(None, checkpoint=tmp_path / "c") as found:
        found.round(4)
    with pytest.raises(fl.CheckpointError, match="its rounds had no noise, so no epsilon holds; begin anew"):
        fl.Server.resume(tmp_path / "c", LOCAL, privacy=LITTLE)


def test_no_model_leaves_if_the_ledger_cannot_be_written(tmp_path: Path) -> None:
    with federation(LITTLE, checkpoint=tmp_path / "c") as found:
        found.round(4)
        before = found.server.model
        with disk_of(10), pytest.raises(OSError, match="File too large"):
            found.server.round()
        assert found.server.model is before
        assert found.server.number == 1
        report = found.round(4)
        assert report.number == 2
        assert report.privacy is not None
        assert report.privacy.rounds == 3  # the noise of the attempt before was drawn
        assert load(tmp_path / "c")["privacy"]["ledger"][0][3] == 3


class Breaks(fl.FedAvg):
    """Fails when it gets a mean, which has noise, for the first two times."""

    left = 2

    def finish(self, model: Any, *, number: int) -> Any:
        if self.left:
            self.left -= 1
            raise RuntimeError("no")
        return super().finish(model, number=number)

    @property
    def takes_means(self) -> bool:
        return True


@pytest.mark.parametrize("secure", [None, fl.SecureAggregation()])
def test_an_attempt_that_is_void_after_its_noise_was_drawn_is_charged(tmp_path: Path, secure: Any) -> None:
    """That it is void depends on the clients' data."""
    with federation(LITTLE, strategy=Breaks(), secure=secure, checkpoint=tmp_path / "c") as found:
        assert found.round(4).clients == ()
        assert load(tmp_path / "c")["privacy"]["ledger"][0][3] == 1
        assert found.round(4).clients == ()
        report = found.round(4)
        assert len(report.clients) == 4
        assert report.privacy is not None
        assert report.privacy.rounds == 3


def test_an_evaluation_under_masks_with_noise() -> None:
    for privacy in (LITTLE, fl.DifferentialPrivacy(clip=10.0, noise_multiplier=0.01, quantile=0.5)):
        with Federation(model(), privacy=privacy, min_clients=3, secure=fl.SecureAggregation(), evaluate=True) as found:
            for number, id in enumerate(IDS[:3]):
                found.join(id, adds(0.1), lambda model, config, number=number: fl.Report(number + 1, {"loss": 1.0}))
            report = found.round(3)
            assert report.evaluation == {}
            assert report.evaluation_failures == {}
            assert len(report.evaluation_examples) == 3


def test_without_a_checkpoint_a_warning_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Federation(model(), privacy=LITTLE):
        pass
    assert "privacy without a checkpoint: a server that is started again does not know what was spent" in caplog.text


def test_an_attempt_that_does_not_count_is_not_charged() -> None:
    def fails(model: Any, config: Any) -> Any:
        raise RuntimeError("no data")

    with Federation(model(), privacy=LITTLE, min_clients=2) as found:
        found.join(A, adds(1.0))
        found.join(B, fails)
        report = found.round(2)
        assert report.clients == ()
        assert report.privacy is not None
        assert report.privacy.rounds == 0
        assert np.array_equal(found.server.model["w"], np.zeros((30, 20)))


def test_packed_updates_are_clipped_as_what_they_stand_for() -> None:
    with federation(LITTLE, strategy=fl.FedAvg(compression="float16")) as found:
        found.round(4)
        assert found.server.model["w"] == pytest.approx(np.full((30, 20), 0.25), abs=12 * 0.1 / 4)


# With secure aggregation: the clients add the noise


def test_clients_add_the_noise_under_masks() -> None:
    with federation(LITTLE, secure=fl.SecureAggregation(), strategy=fl.FedAvg()) as found:
        report = found.round(4)
        honest = 3 - 1  # of four, one may be lost, and one in league
        assert found.server.model["w"] == pytest.approx(np.full((30, 20), 0.25), abs=12 * 0.1 / 4 * (4 / honest) ** 0.5)
        assert np.std(found.server.model["w"]) > 0.1 / 4
    assert report.masked == fl.MaskedSum(4, None)
    assert report.privacy is not None
    assert not report.privacy.trusts_server
    assert report.privacy.epsilon == math.inf  # so little noise hides nothing
    assert report.failures == {}
    assert report.metrics == {}
    assert ", masked, epsilon " in str(report)


def test_the_clip_follows_the_norms_under_masks() -> None:
    privacy = fl.DifferentialPrivacy(clip=0.1, noise_multiplier=0.01, quantile=0.5)
    with federation(privacy, secure=fl.SecureAggregation()) as found:
        before = found.round(4).privacy
        after = found.round(4).privacy
        assert before is not None
        assert after is not None
        assert 0.1 < before.clip < after.clip


def test_a_client_that_wants_noise_gives_nothing_without() -> None:
    policy = fl.SecurePolicy(noise_multiplier=1.0)
    for secure, privacy, reason in (
        (None, fl.DifferentialPrivacy(1.0, 1.0), "under secure aggregation only"),
        (fl.SecureAggregation(), None, "a noise multiplier of 0; this client wants 1 or more"),
        (fl.SecureAggregation(), fl.DifferentialPrivacy(1.0, 0.5), "a noise multiplier of 0.5; this client wants 1"),
    ):
        settings: dict[str, Any] = {"secure": secure, "privacy": privacy, "strategy": fl.FedAvg(max_examples="equal")}
        with Federation(model(), min_clients=3, **settings) as found:
            for id in IDS[:3]:
                client = fl.Client(adds(1.0), secure=policy)
                found.start(client.run, at(found.server.netloc, id))
            report = found.round(3)
            assert report.clients == ()
            assert any(reason in str(each) for each in report.failures.values())


# What does not go together


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"privacy": 1.0}, "privacy: 1.0; expected an object, as in fl.DifferentialPrivacy"),
        ({"strategy": fl.Krum(byzantine=0)}, "Krum looks at single updates"),
        ({"strategy": fl.FedBuff(2)}, "FedBuff looks at single updates"),
        ({"strategy": fl.FedAvg(staleness="hinge(10, 4)")}, "takes late updates, with which a client adds twice"),
        ({"relays": True}, "the clip of DifferentialPrivacy needs each update"),
        (
            {"roles": {"v": "averaged"}},
            "added to trained tensors only, and not to 'v', which follow the data",
        ),
        ({"roles": {"w": "local", "v": "constant"}}, "no trained element"),
        ({"privacy": fl.DifferentialPrivacy(1.0, 1e6), "min_clients": 10**8}, "would have too few steps"),
        (
            {"privacy": fl.DifferentialPrivacy(1.0, 1.0, sampling=0.5), "strategy": fl.FedAvg(fraction=0.5)},
            r"selects a part of the clients, and DifferentialPrivacy.sampling draws them; expected fraction=1.0",
        ),
        ({"secure": fl.SecureAggregation(metrics=("loss",))}, r"metrics of SecureAggregation have no noise"),
        (
            {"secure": fl.SecureAggregation(), "privacy": fl.DifferentialPrivacy(1.0, 1.0, sampling=0.5)},
            "the server knows who is asked",
        ),
        ({"privacy": fl.DifferentialPrivacy(1.0, 0.01, max_epsilon=1.0)}, "expected more than the"),
        ({"privacy": fl.DifferentialPrivacy(1.0, 1.0, sampling=0.5)}, r"Server.min_clients: 2; expected 47 or more"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(netq.InvalidOption, match=match):
        fl.Server(model(), LOCAL, **{"privacy": LITTLE, **settings})


# In a simulation


def train(model: Any, config: Any) -> fl.Update:
    number = config["partition"]
    return fl.Update({name: each + 0.1 * (number % 4 + 1) for name, each in model.items()}, 1)


def test_a_simulation_can_be_repeated() -> None:
    results = [fl.simulate(model(), [train] * 40, 3, privacy=LITTLE, seed=seed, processes=2) for seed in (1, 1, 2)]
    models = [result.model["w"] for result in results]
    assert np.array_equal(models[0], models[1])
    assert not np.array_equal(models[0], models[2])
    assert models[0] == pytest.approx(np.full((30, 20), 0.75), abs=12 * 0.1 / 40 * 3**0.5)
    assert results[0].reports[-1].privacy == fl.PrivacySpent(
        math.inf, 1e-3, 3, 0.01, sampling=1.0, clip=10.0, trusts_server=True
    )


def test_a_client_that_has_failed_is_drawn_again() -> None:
    def fails_first(model: Any, config: Any) -> fl.Update:
        if config["round"] < 5 and config["partition"] < 60:
            raise RuntimeError("not yet")
        return train(model, config)

    privacy = fl.DifferentialPrivacy(clip=10.0, noise_multiplier=0.5, sampling=0.5)
    settings: dict[str, Any] = {"privacy": privacy, "seed": 1, "processes": 2, "devices": fl.Devices()}
    with pytest.raises(fl.SimulationError):  # an error of a function ends a simulation; a skip does not
        fl.simulate(model(), [fails_first] * 120, 1, **settings)

    def late(model: Any, config: Any) -> Any:
        return fl.Skip("not yet") if config["round"] < 5 and config["partition"] < 60 else train(model, config)

    result = fl.simulate(model(), [late] * 120, 8, **settings)
    assert any(client.int < 60 for client in result.reports[-1].clients)


@pytest.mark.parametrize("devices", [None, fl.Devices()])
def test_a_simulation_with_drawn_clients(devices: Any) -> None:
    privacy = fl.DifferentialPrivacy(clip=10.0, noise_multiplier=0.5, sampling=0.3)
    result = fl.simulate(model(), [train] * 200, 3, privacy=privacy, seed=1, processes=2, devices=devices)
    counts = [len(report.clients) for report in result.reports]
    assert all(30 < count < 90 for count in counts)
    assert len(set(counts)) > 1
    spent = result.reports[-1].privacy
    assert spent is not None
    assert 0 < spent.epsilon < of_gaussian(0.5 / 3**0.5, 1e-5)


def test_a_simulation_ends_before_the_budget() -> None:
    privacy = fl.DifferentialPrivacy(clip=1.0, noise_multiplier=2.0, max_epsilon=4.0)
    assert len(fl.simulate(model(), [train] * 4, 10, privacy=privacy, processes=1).reports) == 3
