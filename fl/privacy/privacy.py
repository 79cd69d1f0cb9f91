"""Differential privacy of one server: which changes are summed, with which noise, and what the models have said.

Owned by fl/server/federation.py, used in its thread. Knows no client, and sends nothing. Either the server sees the
updates, and their sum and the noise are made here; or the clients add noise under masks (fl/secure/noised.py), and this
keeps the ledger.

Source: McMahan et al., 2018, "Learning differentially private recurrent language models" (DP-FedAvg, with fixed
denominators); the clip follows the norms as in Andrew et al., 2021, "Differentially private learning with adaptive
clipping".
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fl.errors import CheckpointError, PrivacyBudgetSpent
from fl.privacy.accountant import EMPTY, Ledger, Noise, library
from fl.privacy.bounded import CLIPS, Bounded, Clipping
from fl.privacy.noise import normal
from fl.privacy.options import DifferentialPrivacy
from fl.report import PrivacySpent
from fl.tensors.blocks import BLOCK
from fl.tensors.spec import Model, Spec, specs_of
from netq.errors import InvalidOption
from netq.text import describe
from netq.validate import expect, is_number

log = logging.getLogger("netq.fl")

T = TypeVar("T")

_RATE = 0.2  # by which the clip follows the norms, per round: exp(-rate * (the part within it - quantile))
_MUCH = 10  # noise in a mean, in multiples of the clip, that is warned of
_RANGE = 1e6  # the clip stays within so many times the first one, and its inverse


class Privacy:
    """The clip, the sum of the round under way, and the ledger.

    at_clients: whether the clients add the noise.
    source:     of the draws and the noise.
    within:     which part of the round's clients was within the clip, with noise; None: it is not counted.
    """

    def __init__(self, options: DifferentialPrivacy, *, at_clients: bool, source: random.Random | None = None) -> None:
        form = "an object, as in fl.DifferentialPrivacy(clip=1.0, noise_multiplier=1.0)"
        expect(isinstance(options, DifferentialPrivacy), "Server.privacy", options, form)
        if options.sampling < 1:
            library()
        self.at_clients = at_clients
        self.clipping = Clipping(options.clip, options.noise_multiplier, options.quantile is not None)
        self._options = options
        self._source = source or random.SystemRandom()
        self._noise = Noise(options.noise_multiplier, options.sampling, at_clients)
        self._ledger = Ledger()
        self._clients = 1.0  # by how many the sum of this round is divided
        self._bounded: Bounded | None = None
        self._total: NDArray[np.int64] | None = None  # of the changes of this round; None before its first one
        self.within: float | None = None
        self._has_told = False
        self._elements = 0
        first, most = self._ledger.epsilon_with(self._noise, options.delta), options.max_epsilon
        if most is not None and first > most:
            raise InvalidOption(
                f"DifferentialPrivacy.max_epsilon: {most}; expected more than the {first:.3g} of one round, or more "
                "noise"
            )

    def check(self, specs: Mapping[str, Spec], clients: int) -> None:
        """Raise InvalidUpdate for a model that cannot be summed with this noise. specs: of its trained tensors."""
        Bounded(specs, self.clipping, clients)
        self._elements = sum(spec.numbers for spec in specs.values())

    def check_population(self, clients: int, whose: str) -> None:
        """Raise InvalidOption if rounds may begin with too few clients to draw from."""
        chance = self._options.sampling
        least = 1 if chance == 1 else math.ceil(math.log(EMPTY * self._options.delta) / math.log1p(-chance))
        if clients < least:
            raise InvalidOption(
                f"{whose}: {clients}; expected {least} or more: with sampling={chance:g} it must be unlikely that none "
                "is drawn"
            )

    @property
    def charged(self) -> int:
        """Rounds that are in the ledger, and attempts of rounds."""
        return len(self._ledger)

    @property
    def is_drawn(self) -> bool:
        """Whether the clients of a round are drawn at random."""
        return self._options.sampling < 1

    @property
    def is_spent(self) -> bool:
        """Whether one more round would exceed the largest epsilon."""
        most = self._options.max_epsilon
        return most is not None and self._ledger.epsilon_with(self._noise, self._options.delta) > most

    @property
    def spent(self) -> PrivacySpent:
        """What the models have said until now."""
        options = self._options
        return PrivacySpent(
            epsilon=self._ledger.epsilon(options.delta),
            delta=options.delta,
            rounds=len(self._ledger),
            noise_multiplier=options.noise_multiplier,
            sampling=options.sampling,
            clip=self.clipping.clip,
            trusts_server=not self.at_clients,
        )

    def warn_if_short(self, rounds: int) -> None:
        """Warn if so many rounds do not fit into the budget."""
        most, options = self._options.max_epsilon, self._options
        if most is not None and rounds > 0 and not self.is_spent:
            whole = self._ledger.epsilon_with(self._noise, options.delta, rounds)
            if whole > most:
                text = "max_epsilon=%g ends these %d rounds early: all of them would have epsilon %.3g"
                log.warning(text, most, rounds, whole)

    def drawn(self, clients: Sequence[T]) -> list[T]:
        """Begin an attempt of a round. Return which of the clients are asked. Raises PrivacyBudgetSpent."""
        if self.is_spent:
            raise PrivacyBudgetSpent(
                f"epsilon is {self.spent.epsilon:.3g} after {len(self._ledger)} rounds, and one more would exceed "
                f"max_epsilon={self._options.max_epsilon}: the model is final"
            )
        self.abandon()
        self._tell(len(clients))
        chance = self._options.sampling
        self._clients = max(1.0, chance * len(clients))
        if chance == 1:
            return list(clients)
        least = math.ceil(math.log(EMPTY * self._options.delta) / math.log1p(-chance))
        if len(clients) < least:
            text = "%d clients are too few to draw %g of them: that none is drawn must be unlikely; %d are enough"
            log.warning(text, len(clients), chance, least)
            return []
        return [each for each in clients if self._source.random() < chance]

    def _tell(self, clients: int) -> None:
        """Say once what the options come to for so many clients."""
        if self._has_told or not clients:
            return
        self._has_told, options = True, self._options
        noise = options.noise_multiplier * self.clipping.clip * math.sqrt(self._elements) / clients
        text = "noise: the mean of a round of %d clients has some of norm %.3g; a change has %.3g at most"
        log.log(
            logging.WARNING if noise > _MUCH * self.clipping.clip else logging.INFO,
            text,
            clients,
            noise,
            self.clipping.clip,
        )
        if options.delta * clients >= 1:
            text = "delta=%g is 1/%d or more: it allows to publish all that one of %d clients has; expected less"
            log.warning(text, options.delta, clients, clients)
        if self._ledger.epsilon_with(self._noise, options.delta) == math.inf:
            log.warning("noise_multiplier=%g is too little: no epsilon holds", options.noise_multiplier)

    def fold(self, start: Model, trained: Model) -> None:
        """Add a client's change to the sum. Raises InvalidUpdate, with nothing changed, for one that is not finite."""
        if self._total is None:
            self._bounded = Bounded(specs_of(start), self.clipping, self._clients)
            self._total = np.zeros(self._bounded.size, np.int64)
        assert self._bounded is not None
        place = 0
        for whole in self._bounded.whole(start, trained):
            self._total[place : place + whole.size] += whole.astype(np.int64)
            place += whole.size

    def mean(self, start: Model) -> dict[str, Any]:
        """Return the round's model, moved by the mean of the changes with noise."""
        assert self._total is not None
        assert self._bounded is not None
        total, bounded = self._total, self._bounded
        for place in range(0, bounded.size, BLOCK):
            piece = total[place : place + BLOCK]
            piece += np.rint(bounded.deviation * normal(piece.size, self._source.randbytes)).astype(np.int64)
        self.within = bounded.within(total)
        self._total = None
        return bounded.moved(start, total)

    def charge(self) -> None:
        """Note a round: call it before its noise is drawn, or its sum is opened. A void attempt says something, too."""
        self._ledger.add(self._noise)

    def follow(self) -> None:
        """Have the clip follow the norms, after a round."""
        if self.within is not None and self._options.quantile is not None:
            part = min(1.0, max(0.0, self.within))
            clip = self.clipping.clip * math.exp(-_RATE * (part - self._options.quantile))
            first = self._options.clip
            self.clipping = replace(
                self.clipping, clip=min(max(clip, first / _RANGE, CLIPS[0]), first * _RANGE, CLIPS[1])
            )

    def abandon(self) -> None:
        """Discard the changes of this round."""
        self._total = self.within = None

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has: the ledger, and the clip."""
        return {"ledger": self._ledger.state(), "clip": self.clipping.clip}

    def restore(self, state: Mapping[str, Any], *, is_older: bool) -> None:
        """Go on from what `state` has returned. Raises CheckpointError.

        is_older: whether a model may have left since.
        """
        try:
            self._ledger, clip = Ledger.restored(state["ledger"]), state["clip"]
            if not is_number(clip, *CLIPS):
                raise ValueError(f"clip: {clip!r}; expected a number above 0")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CheckpointError(f"what the models have said cannot be restored: {describe(error)}") from error
        if self._options.quantile is not None:
            self.clipping = replace(self.clipping, clip=clip)
        if is_older:
            self.charge()
