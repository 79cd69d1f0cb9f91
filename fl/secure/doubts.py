"""Which clients lie, as far as others show it. Where a secret or a share of two clients does not fit, one of them lies.

Used by a server (fl/server/masked.py). Nothing tells which of the two lies. But honest clients fit each other: a client
that does not fit with more others than lie is a liar itself. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

Pair = tuple[str, str]
_REMEMBERED = 4096  # clients with doubts, and pairs: clients without certificates can come under any number of ids
_TURN = 16  # rounds in which one of a pair is left out, before the other is
_TWICE = 2  # set-ups that a pair has ended, before one of it is left out without another one


@dataclass
class _Doubted:
    """A client. others: that it does not fit with. bound: how many may lie, in the largest session with doubts."""

    others: set[str] = field(default_factory=set)
    bound: int = 0


class Doubts:
    """The doubts of all rounds of one server."""

    def __init__(self) -> None:
        self._doubted: dict[str, _Doubted] = {}
        self._ended: Counter[Pair] = Counter()  # set-ups, by the pair that has ended them, in order

    def note(self, pairs: Iterable[Pair], clients: Collection[str], bound: int) -> dict[str, str]:
        """Note pairs of clients of which one lies. Return those that have lied, and how that shows; they start anew.

        clients: that are here. Doubts with others do not count, or one client could blame by itself, under new ids.
        bound:   how many clients of the session may lie.
        """
        for pair in pairs:
            for one, other in (pair, pair[::-1]):
                if one != other:
                    its = self._doubted.setdefault(one, _Doubted())
                    its.others.add(other)
                    its.bound = max(its.bound, bound)
        here = frozenset(clients)
        counts = {each: len(self._doubted[each].others & here) for each in here & self._doubted.keys()}
        liars = {each: count for each, count in counts.items() if count > self._doubted[each].bound}
        self._forget(liars)
        return {each: f"what it has shared with {count} others is not what these have" for each, count in liars.items()}

    def ended(self, pairs: Iterable[Pair]) -> None:
        """Note that a set-up has ended without both of each of these pairs."""
        self._ended.update({(min(pair), max(pair)) for pair in pairs})
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def left_out(self, clients: Collection[str], number: int) -> dict[str, str]:
        """Return the clients to leave out of a round, each with the one that it does not fit with.

        Of a pair that has ended two set-ups, one is: by turns, so that no liar keeps an honest client out for long.
        number: of the round.
        """
        found = dict[str, str]()
        for pair, count in self._ended.items():
            if count >= _TWICE and all(each in clients and each not in found for each in pair):
                turn = number // _TURN % 2
                found[pair[turn]] = pair[1 - turn]
        return found

    def _forget(self, liars: Collection[str]) -> None:
        """Forget the doubts with liars, and the oldest ones of too many."""
        for liar in liars:
            for other in self._doubted.pop(liar).others:
                if other in self._doubted:
                    self._doubted[other].others.discard(liar)
            for pair in [each for each in self._ended if liar in each]:
                del self._ended[pair]
        while len(self._doubted) > _REMEMBERED:
            del self._doubted[next(iter(self._doubted))]
