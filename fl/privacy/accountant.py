"""What a model that was trained with noise says of one device at most: epsilon, at a delta.

A ledger has the noise of each round whose model may have left. Rounds in which all devices may take part are composed
exactly; with noise from whole numbers by a bound that is a few hundredths higher. Rounds for which devices are drawn at
random need the package dp-accounting. Pure.

Neighbours are two federations that differ in one device, which takes part in one and adds nothing in the other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from fl.privacy.noise import DISCRETE_TAIL, NORMAL_TAIL
from netq.errors import InvalidOption
from netq.validate import is_number, is_whole

EMPTY = 1e-9  # of delta: the probability of a round for which no device is drawn, at most
_LOST = 1e-6  # of delta: the probability of outputs that only a device can lead to, as random numbers have an end
_HALVINGS = 100  # of an interval: more than a float has bits
_LOG_LEAST = -700.0  # below it exp() is nearly 0: the tail of the normal distribution is approximated
_INTERVAL = 1e-4  # of privacy losses, as dp-accounting's default


class Noise(NamedTuple):
    """The noise of one round.

    multiplier:  its standard deviation, in multiples of the largest change of one device.
    sampling:    the probability with which each device was asked, by a draw that is secret. 1: anyone may know.
    is_discrete: whether it is a sum of whole numbers of the devices.
    """

    multiplier: float
    sampling: float = 1.0
    is_discrete: bool = False

    @property
    def lost(self) -> float:
        """The probability of an output that is impossible without a device, with which nothing can be hidden."""
        tail = DISCRETE_TAIL if self.is_discrete else NORMAL_TAIL
        return math.exp(_log_below(1 / self.multiplier - tail))


class Ledger:
    """The noise of the rounds whose models may have left, and how many rounds had it."""

    def __init__(self, rounds: Sequence[tuple[Noise, int]] = ()) -> None:
        self._rounds = list(rounds)

    def __len__(self) -> int:
        return sum(count for _, count in self._rounds)

    def add(self, noise: Noise, count: int = 1) -> Self:
        """Note rounds. Return the ledger."""
        if self._rounds and self._rounds[-1][0] == noise:
            count += self._rounds.pop()[1]
        self._rounds.append((noise, count))
        return self

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon that is known to hold at a delta. 0 without a round; infinite if none holds."""
        rounds = self._rounds
        delta *= 1 - EMPTY * sum(count for noise, count in rounds if noise.sampling < 1)
        if sum(count * noise.lost for noise, count in rounds) > _LOST * delta:
            return math.inf
        if not rounds:
            return 0.0
        rho = sum(count / (2 * noise.multiplier**2) for noise, count in rounds)
        discrete = sum(count / (2 * noise.multiplier**2) for noise, count in rounds if noise.is_discrete)
        if all(noise.sampling == 1 for noise, _ in rounds):
            return of_concentrated(rho, delta) if discrete else of_gaussian(1 / math.sqrt(2 * rho), delta)
        drawn = tuple(each for each in rounds if not each[0].is_discrete)
        if not discrete:
            return _of_drawn(drawn, delta)
        return of_concentrated(discrete, delta / 2) + _of_drawn(drawn, delta / 2)

    def epsilon_with(self, noise: Noise, delta: float, count: int = 1) -> float:
        """Return the epsilon after more rounds."""
        return Ledger(self._rounds).add(noise, count).epsilon(delta)

    def state(self) -> list[list[Any]]:
        """Return it as plain values."""
        return [[*noise, count] for noise, count in self._rounds]

    @classmethod
    def restored(cls, state: Any) -> Self:
        """Return a ledger from its plain values. Raises ValueError, TypeError, IndexError for others."""
        if not isinstance(state, list):  # no dict or text without rounds
            raise TypeError(f"a {type(state).__name__}; expected a list of rounds")
        rounds = [(Noise(*each[:3]), each[3]) for each in state]
        for noise, count in rounds:
            right = is_number(noise.multiplier, 1e-6, 1e9) and is_number(noise.sampling, 0, 1) and noise.sampling > 0
            if not (right and type(noise.is_discrete) is bool and is_whole(count, 1)):
                raise ValueError(f"{noise}, {count}: no rounds with noise")
        return cls(rounds)


def of_gaussian(multiplier: float, delta: float) -> float:
    """Return the exact epsilon of Gaussian noise. Rounds of z1, z2, … are one of (1/z1² + 1/z2² + …) ** -1/2.

    Sources: Balle and Wang, 2018, "Improving the Gaussian mechanism for differential privacy", theorem 8; Dong, Roth
    and Su, 2022, "Gaussian differential privacy", corollary 3.3.
    """

    def exceeds(epsilon: float) -> bool:
        before, behind = -epsilon * multiplier + 0.5 / multiplier, -epsilon * multiplier - 0.5 / multiplier
        return math.exp(_log_below(before)) - math.exp(epsilon + _log_below(behind)) > delta

    return _least(exceeds, of_concentrated(0.5 / multiplier**2, delta))


def of_concentrated(rho: float, delta: float) -> float:
    """Return an epsilon that holds for what is rho-zCDP. That of rounds is the sum of theirs.

    Source: Canonne, Kamath and Steinke, 2020, "The discrete Gaussian for differential privacy", proposition 12.
    """

    def at(order: float) -> float:
        return order * rho + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)

    # It falls and then rises with the order.
    middle = 1 + math.sqrt(-math.log(delta) / rho)
    low, high = 1 + (middle - 1) / 10, 1 + (middle - 1) * 10
    for _ in range(_HALVINGS):
        one, two = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, two) if at(one) < at(two) else (one, high)
    return max(0.0, at(low))


@functools.lru_cache(maxsize=4)
def _of_drawn(rounds: tuple[tuple[Noise, int], ...], delta: float) -> float:
    """Return the epsilon of rounds for which devices were drawn, each by itself."""
    dp_accounting = library()
    interval = _INTERVAL * max([1.0, *(noise.multiplier**-2 for noise, _ in rounds)])  # losses are so much larger
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=interval)
    for noise, count in rounds:
        event = dp_accounting.GaussianDpEvent(noise.multiplier)
        if noise.sampling < 1:
            event = dp_accounting.PoissonSampledDpEvent(noise.sampling, event)
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def library() -> Any:
    """Return the package dp-accounting. Raises InvalidOption."""
    try:
        import dp_accounting
        import dp_accounting.pld
    except ImportError:
        raise InvalidOption(
            "DifferentialPrivacy.sampling: needs the package dp-accounting: pip install 'netq-fl[privacy]'"
        ) from None
    return dp_accounting


def _least(exceeds: Callable[[float], bool], high: float) -> float:
    """Return the least number, up to `high`, from which on something does not exceed."""
    low = 0.0
    if not exceeds(low):
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return high


def _log_below(value: float) -> float:
    """Return the logarithm of the probability that a standard normal number is below this."""
    if value > -math.sqrt(-2 * _LOG_LEAST):
        return math.log(math.erfc(-value / math.sqrt(2)) / 2)
    return -value * value / 2 - math.log(-value) - math.log(2 * math.pi) / 2
