"""The options of differential privacy at a server. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

from fl.privacy.accountant import Ledger, Noise
from fl.privacy.bounded import CLIPS
from netq.errors import InvalidOption
from netq.validate import expect, is_number, whole

_LEAST, _MOST = 1e-3, 1e6  # noise multipliers
_ABOVE_0, _BELOW_1 = 1e-300, 1 - 1e-9
_CLOSE = 1.001  # by how much a multiplier that was looked for is too large at most


@dataclass(frozen=True)
class DifferentialPrivacy:
    """Bounds what the models say of any one client, whatever its data are: noise is added to each round's sum.

    What is protected is all that a client adds in all rounds ("device level"). All clients weigh the same. Who adds the
    noise: the server; with secure aggregation the clients, each a part, so that the server learns no sum without.

    clip:             the largest L2 norm of a client's change, over all tensors together. A longer change is scaled
                      down to it.
    noise_multiplier: the standard deviation of the noise in each element of the sum, in multiples of `clip`.
    delta:            of the guarantee; below 1 divided by the number of clients.
    max_epsilon:      the rounds end before epsilon exceeds it. None: they do not.
    quantile:         `clip` follows the norms, so that this part of the clients is below it: 0.5. None: it stays.
    sampling:         the probability with which each client is asked in a round, by a draw that must stay secret
                      from those who see the models: epsilon is smaller then. It replaces the strategy's `fraction`,
                      and needs the package dp-accounting. 1: all are asked.

    Raises InvalidOption.
    """

    clip: float
    noise_multiplier: float
    delta: float = 1e-5
    max_epsilon: float | None = None
    quantile: float | None = None
    sampling: float = 1.0

    def __post_init__(self) -> None:
        for name, low, high, form in (
            ("clip", *CLIPS, "a number from {:g} to {:g}, as in 1.0: 0 would leave noise only".format(*CLIPS)),
            ("noise_multiplier", _LEAST, _MOST, "a number from 0.001 to 1e6, as in 1.0: noise is what protects"),
            ("delta", _ABOVE_0, _BELOW_1, "a number between 0 and 1, as in 1e-5"),
            ("max_epsilon", _ABOVE_0, 1e300, "a number above 0, as in 8.0"),
            ("quantile", _ABOVE_0, _BELOW_1, "a number between 0 and 1, as in 0.5"),
            ("sampling", _ABOVE_0, 1.0, "a number above 0, and 1 at most"),
        ):
            value = getattr(self, name)
            is_left_out = value is None and name in ("max_epsilon", "quantile")
            expect(is_left_out or is_number(value, low, high), f"DifferentialPrivacy.{name}", value, form)

    @classmethod
    def for_rounds(
        cls, rounds: int, epsilon: float, *, clip: float, delta: float = 1e-5, masks: bool = False, **others: Any
    ) -> Self:
        """Return options with the least noise for which so many rounds stay within an epsilon, which is max_epsilon.

        masks: whether the clients add the noise, under secure aggregation. others: further options.

        Raises InvalidOption if no noise is enough.
        """
        whole("DifferentialPrivacy.for_rounds: rounds", rounds, 1)
        expect(
            is_number(epsilon, _ABOVE_0, 1e300),
            "DifferentialPrivacy.for_rounds: epsilon",
            epsilon,
            "a number above 0, as in 8.0",
        )
        sampling = cls(clip, _MOST, delta, epsilon, **others).sampling
        high = _least_multiplier(rounds, epsilon, delta, Noise(_MOST, 1.0, masks), _LEAST)
        if sampling < 1:  # which needs less noise
            most = Noise(min(1.05 * high, _MOST), sampling)  # 1.05: the library rounds losses up
            high = _least_multiplier(rounds, epsilon, delta, most, high * sampling / 4)
        return cls(clip, high, delta, epsilon, **others)


def _least_multiplier(rounds: int, epsilon: float, delta: float, most: Noise, low: float) -> float:
    """Return the least noise of these rounds, between `low` and `most`. Raises InvalidOption."""

    def is_enough(multiplier: float) -> bool:
        return Ledger([(most._replace(multiplier=multiplier), rounds)]).epsilon(delta) <= epsilon

    high = most.multiplier
    if not is_enough(high):
        raise InvalidOption(
            f"DifferentialPrivacy.for_rounds: epsilon: {epsilon}; no noise_multiplier up to {high:g} keeps {rounds} "
            "rounds within it; expected fewer rounds, or more"
        )
    while high / low > _CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
