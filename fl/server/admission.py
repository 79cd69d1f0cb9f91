"""Admission control: bounds the memory of the updates that clients send at the same time.

A client offers an update by its size, and sends it when it is admitted. Clients are admitted in the order of their
offers, so that small updates cannot delay a large one for ever. One client is always admitted, however large its
update.

A client that sends too slowly while others wait gives its place back, and stands behind them: `slow` finds it, and
`defer` moves it. With its next updates it takes no room that another client at work might need.

Pure; owned by fl/server/members.py. What is known of a client's update is its `Member.place`.
"""

from __future__ import annotations

import math
import statistics
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from fl.server.member import Member, Place, Rate

_RATES = 15  # of the last updates: their median is the usual rate
_SHORTEST = 0.5  # seconds over which a rate is measured at least
_PROOF = 8  # updates in time, after which a client is no longer known as slow


class Sending(NamedTuple):
    """A client's update that is on its way."""

    sent: int  # bytes of all its messages so far, whole or not: it grows while the client sends
    left: int  # bytes that are still to come
    until: float  # when they must be here, by the caller's clock
    is_held: bool  # the server gives it no window
    is_wrong: bool = False  # it sends more than it may


class Admission:
    """The clients that wait, and those that are admitted.

    room:     bytes that may be admitted at once.
    patience: seconds over which a client's rate is measured at most: twice what its update usually takes is enough.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.patience = math.inf
        self.waiting: dict[uuid.UUID, Member] = {}  # for their admission; changed here only
        self._admitted: dict[uuid.UUID, Member] = {}
        self._taken = 0  # bytes of the places of those: a sum for each offer would cost more the more clients there are
        self._admitted_slow: dict[uuid.UUID, Member] = {}  # those that were known as slow when they were admitted
        self._rates: deque[float] = deque(maxlen=_RATES)  # bytes a second
        self._looks = 0  # calls of `slow`

    def offer(self, member: Member, size: int) -> None:
        """Queue a client's update of `size` bytes. A second offer replaces the first, at the end of the queue."""
        self.leave(member)
        member.place = Place(size)
        self.waiting[member.id] = member

    def defer(self, member: Member, size: int) -> None:
        """Know a client as slow. Take its place away, and let it wait behind the others, with what is still to come."""
        member.slow = _PROOF
        self._vacate(member)
        member.place = Place(size, since=None if member.place is None else member.place.since)
        self.waiting.pop(member.id, None)
        self.waiting[member.id] = member

    def arrive(self, member: Member, size: int, now: float) -> None:
        """Note that a client's update has arrived. It takes its place until the client leaves."""
        place = member.place
        if member.slow:
            member.slow -= 1
        elif place is not None and place.since is not None and now > place.since:
            self._rates.append(size / (now - place.since))
        if place is not None and not place.is_admitted:
            place.size = size
            self._admit(member, None)

    def withdraw(self, member: Member) -> None:
        """Remove a client that waits. An admitted client stays admitted: its update is on its way."""
        if member.place is not None and not member.place.is_admitted:
            self.leave(member)

    def leave(self, member: Member) -> None:
        """Remove a client that waits or is admitted. Does nothing for other clients."""
        self.waiting.pop(member.id, None)
        self._vacate(member)
        member.place = member.measured = None

    def _vacate(self, member: Member) -> None:
        """Take the place of an admitted client away. Does nothing for other clients."""
        if self._admitted.pop(member.id, None) is not None and member.place is not None:
            self._taken -= member.place.size
            self._admitted_slow.pop(member.id, None)

    def keep(self, known: Mapping[uuid.UUID, object]) -> None:
        """Forget all other clients."""
        for member in [*self.waiting.values(), *self._admitted.values()]:
            if member.id not in known:
                self.leave(member)

    def admit(self, now: float, at_work: Callable[[], Iterable[Member]] = tuple) -> list[Member]:
        """Admit clients while there is room. Return those admitted by this call.

        at_work: returns the clients that may offer an update; called if the next one is known as slow.
        """
        admitted: list[Member] = []
        while (member := self._next()) is not None and member.place is not None:
            gives_way = member.slow > 0 and any(not each.slow for each in at_work())
            # A slow client leaves as much room as it takes, for one of the others.
            taken = self._taken + member.place.size * (2 if gives_way else 1)
            if (self._admitted or gives_way) and taken > self.room:
                break
            self._admit(member, now if member.place.since is None else member.place.since)
            admitted.append(member)
        return admitted

    def _next(self) -> Member | None:
        """Return the client that is admitted next."""
        waiting = self.waiting.values()
        return next((each for each in waiting if not each.slow), next(iter(waiting), None))

    def _admit(self, member: Member, since: float | None) -> None:
        assert member.place is not None
        member.place.is_admitted, member.place.since = True, since
        del self.waiting[member.id]
        self._admitted[member.id] = member
        self._taken += member.place.size
        if member.slow:
            self._admitted_slow[member.id] = member

    def slow(self, sending: Mapping[Member, Sending], now: float) -> list[Member]:
        """Return the clients that have sent too little since their last measurement: others wait for their room.

        A client has to keep the rate with which it is done in time, and half of the usual rate; one that sends more
        than it may is slow at once. Call this regularly while clients wait, and with an empty mapping when none does:
        a measurement begins with the first call.

        sending: the clients whose updates are on their way.
        """
        usual = statistics.median(self._rates) if self._rates else 0.0
        self._looks += 1
        slow = []
        for member, (sent, left, until, is_held, is_wrong) in sending.items():
            last = member.measured
            if last is None or last.look != self._looks - 1:
                last = Rate(self._looks, sent, now)
            begin, since = last.sent, last.since
            if is_wrong:
                slow.append(member)
            elif is_held or sent < begin:  # with a new session a client's bytes count from 0
                begin, since = sent, now
            elif now - since >= min(self.patience, max(_SHORTEST, 2 * left / usual) if usual else math.inf):
                if (sent - begin) / (now - since) < max(usual / 2, left / max(until - now, 1e-3)):
                    slow.append(member)
                begin, since = sent, now
            member.measured = Rate(self._looks, begin, since)
        return slow

    def in_the_way(self) -> list[Member]:
        """Return the clients known as slow that have a place for which another client waits."""
        if all(each.slow for each in self.waiting.values()):
            return []
        return [each for each in self._admitted_slow.values() if each.slow]

    def share(self, clients: int) -> int:
        """Return the bytes that each of `clients` may send without an offer: with them, all fit into the room."""
        return self.room // max(1, clients)
