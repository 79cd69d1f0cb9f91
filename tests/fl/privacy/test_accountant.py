"""Epsilons are those that papers and dp-accounting have."""

from __future__ import annotations

import math

import dp_accounting
import dp_accounting.pld
import numpy as np
import pytest
from dp_accounting import rdp

from fl.privacy import accountant
from fl.privacy.accountant import Ledger, Noise, of_concentrated, of_gaussian
from netq.errors import InvalidOption

# Sampling, noise multiplier, rounds, delta; epsilon as published, with the conversion of that time: delta from the
# moments by epsilon = rdp + log(1/delta) / (order - 1); and what dp-accounting finds with privacy loss distributions.
PUBLISHED = [
    (0.01, 4.0, 10_000, 1e-5, 1.26, 0.9470),  # Abadi et al., 2016
    (256 / 60_000, 1.12, 14_063, 1e-5, 2.92, 2.3102),  # TensorFlow Privacy, README
    (250 / 60_000, 1.3, 3_600, 1e-5, 1.18, 0.8530),  # its tutorial with MNIST
    (5_000 / 763_430, 1.0, 5_000, 1e-9, 4.634, 3.8988),  # McMahan et al., 2018
]


@pytest.mark.parametrize(("sampling", "multiplier", "rounds", "delta", "published", "best"), PUBLISHED)
def test_published_epsilons(
    sampling: float, multiplier: float, rounds: int, delta: float, published: float, best: float
) -> None:
    assert Ledger([(Noise(multiplier, sampling), rounds)]).epsilon(delta) == pytest.approx(best, rel=5e-4)
    orders = list(range(2, 512))
    old = rdp.RdpAccountant(orders)
    old.compose(dp_accounting.PoissonSampledDpEvent(sampling, dp_accounting.GaussianDpEvent(multiplier)), rounds)
    moments = np.array(old._rdp) + np.log(1 / delta) / (np.array(old._orders) - 1)
    assert moments.min() == pytest.approx(published, rel=4e-3)


@pytest.mark.parametrize(("rounds", "published"), [(1, 4.3772), (100, 91.817)])  # Balle and Wang, 2018: exact
def test_rounds_without_sampling(rounds: int, published: float) -> None:
    assert Ledger([(Noise(1.0), rounds)]).epsilon(1e-5) == pytest.approx(published, rel=1e-4)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 7.0, 40.0])
def test_epsilons_of_dp_accounting(multiplier: float, delta: float) -> None:
    found = dp_accounting.pld.PLDAccountant()
    found.compose(dp_accounting.GaussianDpEvent(multiplier))
    assert of_gaussian(multiplier, delta) == pytest.approx(found.get_epsilon(delta), rel=1e-3, abs=1e-3)
    bound = rdp.RdpAccountant()
    bound.compose(dp_accounting.ZCDpEvent(0.5 / multiplier**2))
    assert of_concentrated(0.5 / multiplier**2, delta) <= bound.get_epsilon(delta) * (1 + 1e-9)
    assert of_concentrated(0.5 / multiplier**2, delta) >= of_gaussian(multiplier, delta)
    assert of_concentrated(0.5 / multiplier**2, delta) == pytest.approx(bound.get_epsilon(delta), rel=0.02, abs=0.01)


@pytest.mark.parametrize("multiplier", [1e-3, 0.01, 1e4])
def test_extreme_noise(multiplier: float) -> None:
    found = of_gaussian(multiplier, 1e-5)
    assert 0 <= found <= of_concentrated(0.5 / multiplier**2, 1e-5)
    assert found == 0 or found > 0.5 / multiplier**2 or multiplier > 1


def test_rounds_of_different_noise_are_composed() -> None:
    ledger = Ledger().add(Noise(3.0)).add(Noise(4.0)).add(Noise(4.0))
    assert ledger.epsilon(1e-5) == pytest.approx(of_gaussian((1 / 9 + 2 / 16) ** -0.5, 1e-5))
    assert len(ledger) == 3
    assert ledger.epsilon_with(Noise(4.0), 1e-5) > ledger.epsilon(1e-5)
    assert len(ledger) == 3


def test_whole_numbers_have_the_bound_of_concentrated_noise() -> None:
    ledger = Ledger().add(Noise(2.0, is_discrete=True), 5).add(Noise(3.0))
    assert ledger.epsilon(1e-5) == pytest.approx(of_concentrated(5 / 8 + 1 / 18, 1e-5))


def test_drawn_rounds_among_others() -> None:
    both = Ledger().add(Noise(2.0, 0.1), 20).add(Noise(5.0)).epsilon(1e-5)
    assert both > Ledger().add(Noise(2.0, 0.1), 20).epsilon(1e-5)
    assert both < Ledger().add(Noise(2.0, 0.1), 20).add(Noise(2.0)).epsilon(1e-5)


def test_without_a_round_nothing_is_said() -> None:
    assert Ledger().epsilon(1e-5) == 0


def test_a_ledger_is_restored() -> None:
    ledger = Ledger().add(Noise(2.0, 0.5), 3).add(Noise(3.0, is_discrete=True))
    again = Ledger.restored(ledger.state())
    assert again.state() == ledger.state() == [[2.0, 0.5, False, 3], [3.0, 1.0, True, 1]]
    assert len(again) == 4


@pytest.mark.parametrize(
    "state",
    [
        [[0.0, 1.0, False, 1]],
        [[1.0, 0.0, False, 1]],
        [[1.0, 1.5, False, 1]],
        [[1.0, 1.0, 1, 1]],
        [[1.0, 1.0, False, 0]],
    ],
)
def test_a_wrong_ledger_is_refused(state: list[list[object]]) -> None:
    with pytest.raises(ValueError, match="no rounds with noise"):
        Ledger.restored(state)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(InvalidOption, match=r"needs the package dp-accounting: pip install"):
        accountant.library()


@pytest.mark.parametrize(
    ("noise", "delta"),
    [(Noise(0.1), 1e-5), (Noise(0.15), 1e-9), (Noise(0.2), 1e-15), (Noise(0.35, is_discrete=True), 1e-5)],
)
def test_noise_that_ends_before_what_it_is_to_hide_has_no_epsilon(noise: Noise, delta: float) -> None:
    assert Ledger([(noise, 1)]).epsilon(delta) == math.inf
    assert Ledger([(noise._replace(multiplier=1.0), 1)]).epsilon(delta) < math.inf


def test_a_round_never_lowers_epsilon() -> None:
    ledger = Ledger().add(Noise(1.0, is_discrete=True), 100)
    assert ledger.epsilon_with(Noise(2.0, 0.1), 1e-5) > ledger.epsilon(1e-5)
    ledger = Ledger().add(Noise(1.0, 0.1), 200)
    assert ledger.epsilon_with(Noise(50.0), 1e-5) > ledger.epsilon(1e-5)
