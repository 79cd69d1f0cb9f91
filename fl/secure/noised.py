"""A clipped update with noise, as whole numbers: what is summed under masks where the sum is to say little of a client.

Each client adds a part of the noise, so that the parts of the honest clients in the sum are the noise that is wanted;
those of clients in league with the server count for nothing, since it knows them. Pure.

Source: Kairouz, Liu and Steinke, 2021, "The distributed discrete Gaussian mechanism for federated learning with secure
aggregation" (arXiv 2102.06387), theorem 1. Its term for the sum of discrete distributions not being of one is below
1e-270 for the deviations here; nothing is rotated, since 32 bits have room.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fl.errors import InvalidUpdate
from fl.privacy.bounded import Bounded, Clipping
from fl.privacy.noise import Bytes, discrete_normal
from fl.secure.layout import Summed, checked_sum
from fl.secure.words import Words
from fl.tensors.spec import Model, Spec

_LEAST_DEVIATION = 8.0  # of a client's part, in steps: a sum of such parts is as good as a discrete distribution


class NoisedLayout:
    """The form of the vectors of one round. Raises InvalidUpdate.

    specs:   of the tensors that are sent, all of floats.
    clients: how many vectors are summed at most.
    honest:  how many of those in a sum add noise that the server does not know, at least.
    """

    def __init__(self, specs: Mapping[str, Spec], clipping: Clipping, clients: int, honest: int) -> None:
        exact = [name for name, spec in specs.items() if spec.is_exact]
        if exact or honest < 1:
            what = f"{exact[0]!r} is no tensor of floats" if exact else f"{honest} clients add noise for certain"
            raise InvalidUpdate(f"{what}; expected floats only, and 1 client at least: noise covers nothing else")
        self._bounded = Bounded(specs, clipping, clients, spread=math.sqrt(clients / honest))
        self._deviation = self._bounded.deviation / math.sqrt(honest)
        if self._deviation < _LEAST_DEVIATION and specs:
            raise InvalidUpdate(
                f"the noise of a client is {self._deviation:.2g} steps; expected {_LEAST_DEVIATION:g}: take a larger "
                "noise_multiplier"
            )
        self.elements = self._bounded.size
        self.small = self.elements + self.elements % 2
        self.large = 2  # one for the client, and the checksum

    @property
    def nbytes(self) -> int:
        """Bytes of a vector."""
        return 4 * self.small + 8 * self.large

    def encode(
        self,
        start: Model,
        trained: Model,
        num_examples: int,
        metrics: Mapping[str, Any],
        random: Bytes = os.urandom,
    ) -> Words:
        """Return an update as a vector with this client's noise. Number of examples and metrics stay at the client.

        Raises InvalidUpdate for a model of another form, or that is not finite.
        """
        words = Words.zeros(self.small, self.large)
        place = 0
        for whole in self._bounded.whole(start, trained):
            noised = whole.astype(np.int64) + discrete_normal(whole.size, self._deviation, random)
            words.small[place : place + whole.size] = noised.astype(np.uint32)  # modulo 2**32
            place += whole.size
        words.large[0] = 1
        words.large[-1] = words.checksum()
        return words

    def decode(self, start: Model, words: Words) -> Summed:
        """Return what a sum of vectors says. Raises InvalidUpdate if it is none: a client has sent something else."""
        clients = checked_sum(words, 0)
        total = words.small.view(np.int32)
        model = self._bounded.moved(start, total)
        return Summed(model, clients, None, {}, self._bounded.within(total))
