"""How many updates may be on their way to the server at once: as many as it has room for, one at least.

Who has one ready says how large it is, and waits with it until it is admitted; in the order of asking, so that a large
one is not passed by for ever. Pure; owned by fl/server/dispatcher.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Set


class Admission:
    """Who waits, and who has been let in. `room` is bytes."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._waiting: dict[uuid.UUID, int] = {}
        self._admitted: dict[uuid.UUID, int] = {}
        self._heard: dict[uuid.UUID, tuple[int, float]] = {}  # of who has been let in: how far it is, and since when

    @property
    def peers(self) -> Set[uuid.UUID]:
        """Who waits or has been let in."""
        return self._waiting.keys() | self._admitted.keys()

    def offer(self, peer: uuid.UUID, size: int) -> None:
        """Let a client wait that has so many bytes; whoever offers again waits with the new ones, at the end."""
        self.leave(peer)
        self._waiting[peer] = size

    def withdraw(self, peer: uuid.UUID) -> None:
        """It need not wait any more; but if it has been let in, what it has is on its way."""
        self._waiting.pop(peer, None)

    def leave(self, peer: uuid.UUID) -> None:
        """It is done, or gone. Harmless if it was not there."""
        self._waiting.pop(peer, None)
        self._admitted.pop(peer, None)
        self._heard.pop(peer, None)

    def admit(self) -> dict[uuid.UUID, int]:
        """Return who may send now, and has not been told; and how much."""
        admitted = {}
        for peer, size in tuple(self._waiting.items()):
            if self._admitted and sum(self._admitted.values()) + size > self.room:
                break
            self._admitted[peer] = admitted[peer] = self._waiting.pop(peer)
        return admitted

    def silent(self, progress: Mapping[uuid.UUID, int], now: float) -> dict[uuid.UUID, float]:
        """Return for how many seconds each that has been let in has come no further, while others waited.

        `progress`: how far each is, in whatever unit. To be asked now and then.
        """
        for peer in self._admitted:
            at = progress.get(peer, 0)
            if not self._waiting or peer not in self._heard or self._heard[peer][0] != at:
                self._heard[peer] = (at, now)
        return {peer: now - since for peer, (_, since) in self._heard.items()}

    def admitted(self, peer: uuid.UUID) -> int:
        """Return how many bytes it has been let in with."""
        return self._admitted.get(peer, 0)

    def share(self, clients: int) -> int:
        """Return how many bytes each of so many clients may send without asking: then there is room for all."""
        return self.room // max(1, clients)
