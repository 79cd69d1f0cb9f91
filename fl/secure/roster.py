"""The clients of a session: in which order, which of them share masks, which keep shares, and how many must be there.

Each client works this out itself from the keys and the nonces of all, and refuses what does not fit: the server's word
counts for nothing in it. All are bound to their nonces before a client reveals its own, so no client and no server
chooses the order, and it is drawn once a set-up. A server that ends set-ups can have it drawn again. Pure.

Sources: the graph of neighbours is that of Bell et al., 2020, "Secure single-server aggregation with (poly)logarithmic
overhead" (eprint 2020/704), section 4; the committee that opens sums is that of Ma et al., 2023, "Flamingo"
(arXiv 2308.09883).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Collection, Mapping, Sequence

from fl.errors import InvalidUpdate

_WITH_ALL = 45  # clients up to which all keep shares; of more, so many do
_LOTTERY = 34  # shares that are needed of 45 that were drawn from clients of which 10 % lie and 10 % are lost
_LIARS = 0.1  # of many clients: the share that may be in league with the server
_CUT = 2**-20  # the probability, at most, of a place at which liars can cut the ring; it takes two
_ASKED = 0.9  # of the session's clients: each round asks so many at least


class Roster:
    """The clients of a session. fingerprints: of their keys, by id; nonces: by id, too. Raises InvalidUpdate.

    order:     of the ids.
    hash:      what the pairs' secrets depend on.
    committee: the ids of those that keep shares.
    """

    def __init__(self, fingerprints: Mapping[str, bytes], nonces: Mapping[str, bytes]) -> None:
        right = all(type(each) is str and len(print) == 32 for each, print in fingerprints.items())
        right = right and nonces.keys() == fingerprints.keys() and all(len(each) == 32 for each in nonces.values())
        if not right or len(fingerprints) < 2:
            raise InvalidUpdate("the clients of a session are not ids, each with a fingerprint and a nonce of 32 bytes")
        known = json.dumps({each: [fingerprints[each].hex(), nonces[each].hex()] for each in sorted(fingerprints)})
        self.hash = hashlib.sha256(b"netq secure roster" + known.encode()).digest()
        self.order = sorted(fingerprints, key=lambda each: hashlib.sha256(self.hash + each.encode()).digest())
        self.committee = tuple(self.order[:_WITH_ALL])
        self._at = {each: at for at, each in enumerate(self.order)}
        self._reach = min(reach(len(self.order)), len(self.order) // 2)

    def __contains__(self, client: object) -> bool:
        return client in self._at

    @property
    def assumed_liars(self) -> int:
        """For how many clients in league with the server a session is made: a third, if all keep shares; else a tenth.

        The threshold follows from it, and how many clients add noise that the server does not know.
        """
        count = len(self.order)
        return math.ceil(_LIARS * count) if count > _WITH_ALL else max(1, (count - 1) // 3)

    @property
    def tolerated_liars(self) -> int:
        """How many clients in league with the server the threshold withstands: the c of 2 t > L + c.

        "In league at most" of the table in docs/explanation/secure-aggregation.md. It is `assumed_liars` or one more,
        as the threshold is rounded; of many clients so many keepers, or a tenth of all if that is more. A client is
        blamed when more others than these say that it lies.
        """
        return max(2 * self.threshold - len(self.committee) - 1, self.assumed_liars)

    @property
    def threshold(self) -> int:
        """How many shares open a secret.

        Of L keepers c may lie. An honest one vouches for one set of survivors only, so two sets cannot both have t
        vouchers if 2 t > L + c. Where all clients keep shares, c is a third of them, and 1 at least.
        """
        keepers = len(self.committee)
        return _LOTTERY if len(self.order) > keepers else (keepers + self.assumed_liars) // 2 + 1

    @property
    def least(self) -> int:
        """Of how many clients a sum is opened at least: the same part of all as of the keepers must be there."""
        return math.ceil(len(self.order) * self.threshold / len(self.committee))

    @property
    def is_complete(self) -> bool:
        """Whether each two clients share a mask."""
        return 2 * self._reach >= len(self.order) - 1

    def neighbours(self, client: str) -> Sequence[str]:
        """Return the clients with which one shares masks, in order: the next ones of a ring, on both sides."""
        if self.is_complete:
            return [each for each in self.order if each != client]
        at, count = self._at[client], len(self.order)
        near = {(at + step) % count for step in range(-self._reach, self._reach + 1)} - {at}
        return [self.order[each] for each in sorted(near)]

    def peers(self, client: str) -> Sequence[str]:
        """Return the clients with which one shares a secret, in order: neighbours, and those of the committee."""
        if client in self.committee:
            return [each for each in self.order if each != client]
        wanted = {*self.neighbours(client), *self.committee}
        return [each for each in self.order if each in wanted]

    def picked(self, clients: Collection[str]) -> list[str]:
        """Return some of the clients in this order."""
        wanted = set(clients)
        return [each for each in self.order if each in wanted]

    def serves(self, clients: Collection[str]) -> bool:
        """Return whether a round may ask these clients: nearly all of the session, so that the keepers are there."""
        return len(clients) >= _ASKED * len(self.order) and self._are_joined(clients)

    def opens(self, present: Collection[str]) -> bool:
        """Return whether a sum of these clients may be opened."""
        return len(present) >= self.least and self._are_joined(present)

    def _are_joined(self, clients: Collection[str]) -> bool:
        """Return whether each of these clients has more than half of its neighbours among them, on either side.

        Then each has an honest one on either side, unless more than half of one side are liars (`reach`). So a path of
        honest clients leads round the whole ring, and their masks hide each among all of them.
        """
        if self.is_complete:
            return True
        wanted, count = set(clients), len(self.order)
        there = [each in wanted for each in self.order]
        sums = [0, *itertools.accumulate(there * 2)]
        for at in range(count):
            if there[at]:
                after = sums[at + 1 + self._reach] - sums[at + 1]
                before = sums[at + count] - sums[at + count - self._reach]
                if 2 * min(after, before) <= self._reach:
                    return False
        return True


def reach(clients: int) -> int:
    """Return with how many clients on either side each of so many shares masks.

    The least for which more than half of one side are liars at one place of the ring with a probability of 2**-20 at
    most. A set of honest clients is cut off at two such places.
    """
    return next(each for each in itertools.count(1) if clients * _more_than_half(each) <= _CUT)


def _more_than_half(count: int) -> float:
    """Return the probability that more than half of so many clients lie."""
    ways = range(count // 2 + 1, count + 1)
    return sum(math.comb(count, each) * _LIARS**each * (1 - _LIARS) ** (count - each) for each in ways)
