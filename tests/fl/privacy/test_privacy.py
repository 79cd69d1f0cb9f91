"""Differential privacy of a server: what is summed, what is noted, and when it ends."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import pytest

import fl
import netq
from fl.errors import CheckpointError, PrivacyBudgetSpent
from fl.privacy.accountant import of_gaussian
from fl.privacy.privacy import Privacy

START = {"w": np.zeros((20, 10), np.float32)}
CLIENTS = range(50)


def privacy(seed: int = 1, *, at_clients: bool = False, **options: Any) -> Privacy:
    made = fl.DifferentialPrivacy(**{"clip": 1.0, "noise_multiplier": 2.0, "delta": 1e-5, **options})
    return Privacy(made, at_clients=at_clients, source=random.Random(seed))


def change(norm: float) -> dict[str, Any]:
    direction = np.ones((20, 10), np.float32)
    return {"w": (direction / np.linalg.norm(direction) * norm).astype(np.float32)}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"clip": 0}, "clip: 0; expected a number from 1e-100 to 1e"),
        ({"clip": 1e-101}, "clip"),
        ({"clip": 10**400}, "clip"),
        ({"clip": float("nan")}, "clip"),
        ({"clip": float("inf")}, "clip"),
        ({"clip": True}, "clip"),
        ({"noise_multiplier": 0.0}, "noise is what protects"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1}, "delta"),
        ({"max_epsilon": 0}, "max_epsilon"),
        ({"quantile": 1.0}, "quantile"),
        ({"sampling": 0.0}, "sampling"),
        ({"sampling": 1.1}, "sampling"),
    ],
)
def test_wrong_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(netq.InvalidOption, match=match):
        fl.DifferentialPrivacy(**{"clip": 1.0, "noise_multiplier": 1.0, **options})


def test_the_mean_is_divided_by_the_clients_that_were_asked() -> None:
    found = privacy(noise_multiplier=1e-3)
    assert found.drawn(CLIENTS) == list(CLIENTS)
    for _ in range(10):  # of 50
        found.fold(START, change(0.5))
    assert found.mean(START)["w"] == pytest.approx(change(0.1)["w"], abs=1e-3)


def test_noise_has_the_deviation_that_is_accounted() -> None:
    found = privacy(noise_multiplier=3.0)
    found.drawn(CLIENTS)
    values = np.zeros((30, 200))
    for each in values:
        found.fold(START, START)
        each[:] = found.mean(START)["w"].ravel()
    assert values.std() == pytest.approx(3.0 / 50, rel=0.05)


def test_one_client_moves_the_sum_by_the_clip_at_most() -> None:
    means = []
    for norm in (0.0, 1e6):
        found = privacy()  # the same noise
        found.drawn(CLIENTS)
        found.fold(START, change(0.3))
        found.fold(START, change(norm))
        means.append(found.mean(START)["w"].astype(np.float64))
    assert np.linalg.norm(means[1] - means[0]) * 50 == pytest.approx(1.0, rel=2e-3)


def test_the_ledger_counts_rounds_that_were_charged() -> None:
    found = privacy()
    assert found.spent.epsilon == 0
    for _ in range(3):
        found.charge()
    assert found.spent.rounds == 3
    assert found.spent.epsilon == pytest.approx(of_gaussian(2 / 3**0.5, 1e-5))
    assert str(found.spent) == "epsilon 3.71 at delta 1e-05"
    assert found.spent.trusts_server
    assert not privacy(at_clients=True).spent.trusts_server


def test_rounds_end_before_the_budget() -> None:
    found = privacy(max_epsilon=4.0)
    for _ in range(3):
        assert not found.is_spent
        found.drawn(CLIENTS)
        found.charge()
    assert found.is_spent
    with pytest.raises(PrivacyBudgetSpent, match=r"epsilon is 3.71 after 3 rounds, and one more would exceed max_epsi"):
        found.drawn(CLIENTS)


def test_a_budget_that_is_too_small_for_one_round_is_refused() -> None:
    with pytest.raises(netq.InvalidOption, match=r"max_epsilon: 1.0; expected more than the 1.99"):
        privacy(max_epsilon=1.0)


@pytest.mark.parametrize(("norm", "expected"), [(0.5, 1.0 * np.exp(-0.2 * 0.5)), (2.0, 1.0 * np.exp(0.2 * 0.5))])
def test_the_clip_follows_the_norms(norm: float, expected: float) -> None:
    found = privacy(quantile=0.5, noise_multiplier=0.01)
    found.drawn(CLIENTS)
    for _ in CLIENTS:
        found.fold(START, change(norm))
    found.mean(START)
    found.charge()
    found.follow()
    assert found.clipping.clip == pytest.approx(expected, rel=0.05)  # the noise of the count is a twentieth


def test_the_clip_comes_near_a_quantile() -> None:
    found = privacy(quantile=0.8, noise_multiplier=0.5, clip=0.1)
    for _ in range(60):
        found.drawn(CLIENTS)
        for client in CLIENTS:
            found.fold(START, change((client + 1) / 50 * 3))
        found.mean(START)
        found.follow()
    assert 2.0 < found.clipping.clip < 2.8


def test_the_clip_stays_near_the_first_one() -> None:
    found = privacy(quantile=0.5, clip=1e-99)
    for _ in range(200):
        found.within = 1.0
        found.follow()
    assert found.clipping.clip == 1e-100
    found = privacy(quantile=0.5)
    for _ in range(200):
        found.within = 0.0
        found.follow()
    assert found.clipping.clip == 1e6


@pytest.mark.parametrize(
    ("rounds", "epsilon", "others"),
    [(50, 8.0, {}), (10_000, 2.0, {}), (50, 8.0, {"masks": True}), (500, 4.0, {"sampling": 0.05})],
)
def test_so_many_rounds_fit_into_the_budget(rounds: int, epsilon: float, others: dict[str, Any]) -> None:
    made = fl.DifferentialPrivacy.for_rounds(rounds, epsilon, clip=1.0, **others)
    found = Privacy(made, at_clients="masks" in others)
    found._ledger.add(found._noise, rounds - 1)
    assert not found.is_spent
    found.charge()
    assert 0.99 * epsilon < found.spent.epsilon <= epsilon == made.max_epsilon


@pytest.mark.parametrize("epsilon", [None, 0, -1.0, "8"])
def test_a_wrong_epsilon_for_rounds(epsilon: Any) -> None:
    with pytest.raises(netq.InvalidOption, match=r"for_rounds: epsilon: .*expected a number above 0"):
        fl.DifferentialPrivacy.for_rounds(5, epsilon, clip=1.0)


def test_an_epsilon_out_of_reach_is_refused() -> None:
    with pytest.raises(netq.InvalidOption, match=r"no noise_multiplier up to 1e.06 keeps 1000000 rounds within it"):
        fl.DifferentialPrivacy.for_rounds(10**6, 1e-3, clip=1.0)


def test_a_draw_is_of_each_client_by_itself() -> None:
    found = privacy(sampling=0.4)
    drawn = [found.drawn(range(500)) for _ in range(20)]
    assert 150 < np.mean([len(each) for each in drawn]) < 250
    assert len({tuple(each) for each in drawn}) == 20
    assert len({len(each) for each in drawn}) > 3
    found.fold(START, change(1.0))
    assert np.linalg.norm(found.mean(START)["w"] - 0) > 0


def test_epsilon_is_smaller_where_clients_are_drawn() -> None:
    all_are, drawn = privacy(), privacy(sampling=0.1)
    for each in (all_are, drawn):
        each.charge()
        each.charge()
    assert drawn.spent.epsilon < all_are.spent.epsilon / 2


def test_too_few_clients_to_draw_from(caplog: pytest.LogCaptureFixture) -> None:
    found = privacy(sampling=0.1)
    with caplog.at_level(logging.WARNING):
        assert found.drawn(range(100)) == []
    assert "100 clients are too few to draw 0.1 of them: that none is drawn must be unlikely; 306 are" in caplog.text
    assert privacy(sampling=0.1).drawn(range(306)) != []


def test_a_delta_that_is_too_large_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    found = privacy(delta=0.02)
    with caplog.at_level(logging.WARNING):
        found.drawn(CLIENTS)
        found.drawn(CLIENTS)
    assert caplog.text.count("it allows to publish all that one of 50 clients has") == 1


def test_it_goes_on_from_a_checkpoint() -> None:
    found = privacy(quantile=0.5)
    found.within = 1.0
    found.charge()
    found.follow()
    again = privacy(quantile=0.5)
    again.restore(found.state(), is_older=False)
    assert again.spent == found.spent
    again.restore(found.state(), is_older=True)  # a model may have left since
    assert again.spent.rounds == 2


@pytest.mark.parametrize(
    "state", [{}, {"ledger": 5, "clip": 1.0}, {"ledger": [[1.0]], "clip": 1.0}, {"ledger": [], "clip": 0}]
)
def test_a_wrong_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="cannot be restored"):
        privacy().restore(state, is_older=False)


def test_a_discarded_round_leaves_nothing() -> None:
    found = privacy(noise_multiplier=1e-3)
    found.drawn(CLIENTS)
    found.fold(START, change(1.0))
    found.abandon()
    found.drawn(CLIENTS)
    found.fold(START, change(0.0))
    assert np.linalg.norm(found.mean(START)["w"]) < 1e-3


def test_a_refused_update_leaves_the_sum_as_it_is() -> None:
    found = privacy(noise_multiplier=1e-3)
    found.drawn(CLIENTS)
    found.fold(START, change(0.5))
    wrong = change(1.0)
    wrong["w"][0, 0] = np.nan
    with pytest.raises(fl.InvalidUpdate, match="NaN or infinity"):
        found.fold(START, wrong)
    assert found.mean(START)["w"] == pytest.approx(change(0.01)["w"], abs=1e-3)
