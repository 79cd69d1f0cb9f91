"""The server's part in one masked round: adds the vectors as they come, and takes the masks off the sum. Pure.

Used by fl/server/masked.py in the server's thread, and by fl/relay/carried.py, where the sum goes on to the server.
Holds one vector for any number of clients, and their packets. No vector can be opened here: the keepers give shares for
a sum of `least` clients at least.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fl.checks import expect
from fl.errors import InvalidUpdate
from fl.messages import Masked
from fl.secure import shamir
from fl.secure.counts import Counts
from fl.secure.layout import Layout
from fl.secure.noised import NoisedLayout
from fl.secure.packets import Dealt
from fl.secure.participant import masked_with, valid, wanted_of
from fl.secure.roster import Roster
from fl.secure.terms import Terms
from fl.secure.words import Words
from fl.subtotal import Subtotal
from fl.tensors.spec import Model


class Summing:
    """The sum of the vectors of one round.

    present: the clients whose vectors are in it, in the order in which they came.
    roster:  the clients of the session.
    doubts:  pairs of clients of which one has dealt wrong shares, or the other says so. Nothing tells which.
    liars:   clients that have dealt shares of no secret.
    """

    def __init__(self, terms: Terms, roster: Roster, layout: Layout | NoisedLayout | Counts) -> None:
        self.terms = terms
        self.present: list[str] = []
        self.roster = roster
        self._layout = layout
        self._asked = frozenset(terms.clients)
        self._words = Words.zeros(layout.small, layout.large)
        self._dealt: dict[str, Dealt] = {}
        self._shares: dict[tuple[str, int], dict[int, bytes]] = {}  # by client and secret, then by keeper
        self.doubts: set[tuple[str, str]] = set()
        self.liars: dict[str, str] = {}

    def add(self, client: str, masked: Masked) -> None:
        """Add a client's vector. Raises InvalidUpdate, with nothing changed, if it is not of this round's form."""
        self._add([client], masked)

    def merge(self, partial: Mapping[str, Any], clients: Collection[str]) -> None:
        """Add what `partial` of another one has returned, which has these clients. Raises InvalidUpdate, as `add`."""
        self._add(*valid(lambda: _parted(partial, clients), "the sum of a relay"))

    def partial(self) -> dict[str, Any]:
        """Return the sum so far, for `merge` of another one: one vector, and what each client has dealt, in order."""
        dealt = Dealt(*map(b"".join, zip(*(self._dealt[each] for each in self.present), strict=True)))
        return {
            "session": self.terms.session,
            "number": self.terms.number,
            "clients": list(self.present),
            "vector": self._words.memory,
            **{name: np.frombuffer(value, np.uint8) for name, value in dealt._asdict().items()},
        }

    def _add(self, clients: Sequence[str], masked: Masked) -> None:
        if attempt_of(masked) != (self.terms.session, self.terms.number):
            of = "" if masked.session == self.terms.session else " of another session"
            raise InvalidUpdate(f"a vector of the masked round {masked.number}{of}; expected {self.terms.number}")
        if masked.vector.nbytes != self._layout.nbytes:
            raise InvalidUpdate(f"a vector of {masked.vector.nbytes} bytes; expected {self._layout.nbytes}")
        if wrong := [each for each in clients if each not in self._asked or each in self._dealt]:
            raise InvalidUpdate(f"the vector of client {wrong[0]}, which is not asked in this round, or has sent one")
        whole = Dealt(masked.packets, masked.shares, masked.secrets)
        dealt = [Dealt(b"", b"", b"")] * len(clients)
        if self.terms.recovers:
            dealt = whole.parted(len(self.roster.committee), [self._secrets(each) for each in clients])
        self._words.add(Words(masked.vector, self._layout.small))
        self._dealt |= zip(clients, dealt, strict=True)
        self.present += clients

    @property
    def absent(self) -> list[str]:
        """The clients of the round whose vectors are not in the sum."""
        there = frozenset(self.present)
        return [each for each in self.terms.clients if each not in there]

    def packets_for(self, keeper: str) -> list[bytes]:
        """Return the packets for a keeper, in the order of `present`."""
        at = self.roster.committee.index(keeper)
        return [self._dealt[each].packet(at, self._secrets(each)) for each in self.present]

    def take(self, keeper: str, told: Mapping[str, Any]) -> None:
        """Take what a keeper has answered. Raises InvalidUpdate if it is not of the form of an answer."""
        shares, refused, doubted = told["shares"], told["refused"], told["doubted"]
        lists = all(isinstance(each, list) and set(map(type, each)) <= {str} for each in (refused, doubted))
        if type(shares) is not bytes or not lists:
            raise InvalidUpdate("expected shares as bytes, and clients as a list of ids")
        self.doubts |= {(each, keeper) for each in doubted if each in self.roster.committee}
        at = self.roster.committee.index(keeper)
        wanted = list(self._wanted(refused)) if shares or refused else []
        if len(shares) != shamir.SHARE * len(wanted):
            raise InvalidUpdate(f"{len(shares)} bytes of shares; expected {shamir.SHARE} for each of {len(wanted)}")
        self.doubts |= {(each, keeper) for each in refused if each in self._dealt}
        for place, (client, secret) in enumerate(wanted):
            share = shares[shamir.SHARE * place :][: shamir.SHARE]
            if self._dealt[client].is_share(share, at, secret, self._secrets(client)):
                self._shares.setdefault((client, secret), {})[at] = share
            else:
                self.doubts.add((client, keeper))

    @property
    def is_open(self) -> bool:
        """Whether there are enough shares of all secrets, or no shares are needed."""
        if not self.terms.recovers:
            return not self.absent
        least = self.roster.threshold
        return all(len(self._shares.get(each, ())) >= least for each in self._wanted(()))

    def opened(self, start: Model) -> Any:
        """Return what the sum says, as the layout decodes it. start: the round's model.

        Raises InvalidUpdate: a client has dealt shares of no secret, or has sent other numbers than it should.
        """
        if self.terms.recovers:
            self._unmask()
        return self._layout.decode(start, self._words)

    def mean_steps(self, examples: int) -> float:
        """Return how many steps a change has at a client of mean weight. examples: the sum of the weights.

        Infinity: nothing is rounded so, or by steps that do not depend on weights.
        """
        layout = self._layout
        if not isinstance(layout, Layout) or layout.small == 0 or self.terms.most == 1:
            return math.inf
        return layout.steps_of(examples / len(self.present))

    def _unmask(self) -> None:
        plus, minus = list[bytes](), list[bytes]()
        gone = frozenset(self.absent)
        for client in self.present:
            names = ["", *masked_with(self.roster, self.terms, client)]
            for secret in wanted_of(self.roster, self.terms, client, gone):
                key = self._secret(client, secret)
                (plus if secret and client > names[secret] else minus).append(key)
        self._words.mask(plus, minus)

    def _secret(self, client: str, secret: int) -> bytes:
        shares = self._shares[client, secret]
        chosen = dict(sorted(shares.items())[: self.roster.threshold])
        try:
            found = shamir.join(chosen)
        except ValueError:
            found = b""
        if not self._dealt[client].is_secret(found, secret):
            self.liars[client] = "the shares that it has dealt are of no secret that it has committed to"
            raise InvalidUpdate(f"client {client}: {self.liars[client]}")
        return found

    def _wanted(self, refused: Sequence[str]) -> Iterator[tuple[str, int]]:
        gone, without = frozenset(self.absent), frozenset(refused)
        for client in self.present:
            if client not in without:
                for secret in wanted_of(self.roster, self.terms, client, gone):
                    yield client, secret

    def _secrets(self, client: str) -> int:
        return 1 + len(masked_with(self.roster, self.terms, client))


def _parted(partial: Mapping[str, Any], clients: Collection[str]) -> tuple[list[str], Masked]:
    found = {name: value.tobytes() if name in Dealt._fields else value for name, value in partial.items()}
    its = list(found.pop("clients"))
    expect(sorted(its) == sorted(clients), "clients", its, "those for which the relay answers")
    return its, Masked(**found)


def attempt_of(content: Masked | Subtotal) -> tuple[Any, Any] | None:
    """Return the session and the number of the masked round that a vector or a sum of some is of. None: of none."""
    if isinstance(content, Masked):
        return content.session, content.number
    return (content.folded.get("session"), content.folded.get("number")) if "session" in content.folded else None
