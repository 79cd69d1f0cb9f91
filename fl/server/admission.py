"""Admission control: bounds the memory of the updates that clients send at the same time.

A client offers an update by its size, and sends it when it is admitted. Clients are admitted in the order of their
offers, so that small updates cannot delay a large one for ever. One client is always admitted, however large its
update.

A client that sends too slowly while others wait gives its place back, and stands behind them: `slow` finds it, and
`defer` moves it. With its next updates it takes no room that another client at work might need.

Pure; owned by fl/server/client_tasks.py.
"""

from __future__ import annotations

import math
import statistics
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

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
        self._waiting: dict[uuid.UUID, int] = {}  # bytes; the first is admitted next
        self._admitted: dict[uuid.UUID, int] = {}
        self._since: dict[uuid.UUID, float] = {}  # when each client was admitted first
        self._rates: deque[float] = deque(maxlen=_RATES)  # bytes a second
        self._measured: dict[uuid.UUID, tuple[int, float]] = {}  # bytes sent, and when that was seen
        self._slow: dict[uuid.UUID, int] = {}  # updates until each client is no longer known as slow

    @property
    def is_full(self) -> bool:
        """Whether a client waits for its admission."""
        return bool(self._waiting)

    def offer(self, peer: uuid.UUID, size: int) -> None:
        """Queue a client's update of `size` bytes. A second offer replaces the first, at the end of the queue."""
        self.leave(peer)
        self._waiting[peer] = size

    def defer(self, peer: uuid.UUID, size: int) -> None:
        """Know a client as slow. Take its place away, and let it wait behind the others, with what is still to come."""
        self._slow[peer] = _PROOF
        self._admitted.pop(peer, None)
        self._waiting.pop(peer, None)
        self._waiting[peer] = size

    def arrive(self, peer: uuid.UUID, size: int, now: float) -> None:
        """Note that a client's update has arrived. It takes its place until the client leaves."""
        since = self._since.pop(peer, now)
        if peer in self._slow:
            self._slow[peer] -= 1
            if not self._slow[peer]:
                del self._slow[peer]
        elif now > since:
            self._rates.append(size / (now - since))
        if self._waiting.pop(peer, None) is not None:
            self._admitted[peer] = size

    def withdraw(self, peer: uuid.UUID) -> None:
        """Remove a client that waits. An admitted client stays admitted: its update is on its way."""
        self._waiting.pop(peer, None)

    def leave(self, peer: uuid.UUID) -> None:
        """Remove a client that waits or is admitted. Does nothing for other clients."""
        for by_peer in (self._waiting, self._admitted, self._since, self._measured):
            by_peer.pop(peer, None)

    def keep(self, peers: Mapping[uuid.UUID, object]) -> None:
        """Forget all other clients."""
        for peer in (self._waiting.keys() | self._admitted.keys() | self._slow.keys()) - peers.keys():
            self.leave(peer)
            self._slow.pop(peer, None)

    def admit(self, now: float, at_work: Callable[[], Collection[uuid.UUID]] = tuple) -> dict[uuid.UUID, int]:
        """Admit clients while there is room. Return the size of each client admitted by this call.

        at_work: returns the clients that may offer an update; called if a client is known as slow.
        """
        admitted = {}
        others = bool(self._slow) and not self._slow.keys() >= set(at_work())
        while (peer := self._next()) is not None:
            size, gives_way = self._waiting[peer], others and peer in self._slow
            # A slow client leaves as much room as it takes, for one of the others.
            taken = sum(self._admitted.values()) + size * (2 if gives_way else 1)
            if (self._admitted or gives_way) and taken > self.room:
                break
            self._admitted[peer] = admitted[peer] = self._waiting.pop(peer)
            self._since.setdefault(peer, now)
        return admitted

    def _next(self) -> uuid.UUID | None:
        """Return the client that is admitted next."""
        return next((peer for peer in self._waiting if peer not in self._slow), next(iter(self._waiting), None))

    def slow(self, sending: Mapping[uuid.UUID, Sending], now: float) -> list[uuid.UUID]:
        """Return the clients that have sent too little since their last measurement: others wait for their room.

        A client has to keep the rate with which it is done in time, and half of the usual rate; one that sends more
        than it may is slow at once. Call this regularly while clients wait, and with an empty mapping when none does:
        a measurement begins with the first call.

        sending: the clients whose updates are on their way.
        """
        usual = statistics.median(self._rates) if self._rates else 0.0
        before, self._measured = self._measured, {}
        slow = []
        for peer, (sent, left, until, is_held, is_wrong) in sending.items():
            begin, since = before.get(peer, (sent, now))
            if is_wrong:
                slow.append(peer)
            elif is_held or sent < begin:  # with a new session a client's bytes count from 0
                begin, since = sent, now
            elif now - since >= min(self.patience, max(_SHORTEST, 2 * left / usual) if usual else math.inf):
                if (sent - begin) / (now - since) < max(usual / 2, left / max(until - now, 1e-3)):
                    slow.append(peer)
                begin, since = sent, now
            self._measured[peer] = begin, since
        return slow

    def in_the_way(self) -> list[uuid.UUID]:
        """Return the clients known as slow that have a place for which another client waits."""
        if not self._slow or self._slow.keys() >= self._waiting.keys():
            return []
        return [peer for peer in self._admitted if peer in self._slow]

    def is_admitted(self, peer: uuid.UUID) -> bool:
        """Return whether a client has a place."""
        return peer in self._admitted

    def size(self, peer: uuid.UUID) -> int:
        """Return the bytes of a client that waits or is admitted, 0 for any other."""
        return self._admitted.get(peer) or self._waiting.get(peer, 0)

    def share(self, clients: int) -> int:
        """Return the bytes that each of `clients` may send without an offer: with them, all fit into the room."""
        return self.room // max(1, clients)
