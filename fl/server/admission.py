"""Admission control: bounds the memory of the updates that clients send at the same time.

A client offers an update by its size, and sends it when it is admitted. Clients are admitted in the order of their
offers, so that small updates cannot delay a large one for ever. One client is always admitted, however large its
update. Pure; owned by fl/server/client_tasks.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Set


class Admission:
    """The clients that wait, and those that are admitted. `room`: bytes that may be admitted at once."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._waiting: dict[uuid.UUID, int] = {}
        self._admitted: dict[uuid.UUID, int] = {}
        self._progress: dict[uuid.UUID, tuple[int, float]] = {}  # of admitted clients: their progress, and since when

    @property
    def peers(self) -> Set[uuid.UUID]:
        """The clients that wait or are admitted."""
        return self._waiting.keys() | self._admitted.keys()

    def offer(self, peer: uuid.UUID, size: int) -> None:
        """Queue a client's update of `size` bytes. A second offer replaces the first, at the end of the queue."""
        self.leave(peer)
        self._waiting[peer] = size

    def withdraw(self, peer: uuid.UUID) -> None:
        """Remove a client that waits. An admitted client stays admitted: its update is on its way."""
        self._waiting.pop(peer, None)

    def leave(self, peer: uuid.UUID) -> None:
        """Remove a client that waits or is admitted. Does nothing for other clients."""
        self._waiting.pop(peer, None)
        self._admitted.pop(peer, None)
        self._progress.pop(peer, None)

    def admit(self) -> dict[uuid.UUID, int]:
        """Admit clients while there is room. Return the size of each client admitted by this call."""
        admitted = {}
        for peer, size in tuple(self._waiting.items()):
            if self._admitted and sum(self._admitted.values()) + size > self.room:
                break
            self._admitted[peer] = admitted[peer] = self._waiting.pop(peer)
        return admitted

    def silent(self, progress: Mapping[uuid.UUID, int], now: float) -> dict[uuid.UUID, float]:
        """Return for how many seconds each admitted client has made no progress while others waited.

        Seconds count from the first call that sees no progress, so call it regularly.

        progress: a number for each client that grows while the client sends.
        """
        for peer in self._admitted:
            at = progress.get(peer, 0)
            if not self._waiting or peer not in self._progress or self._progress[peer][0] != at:
                self._progress[peer] = (at, now)
        return {peer: now - since for peer, (_, since) in self._progress.items()}

    def admitted(self, peer: uuid.UUID) -> int:
        """Return the size with which a client was admitted, 0 if it is not admitted."""
        return self._admitted.get(peer, 0)

    def share(self, clients: int) -> int:
        """Return the bytes that each of `clients` may send without an offer: with them, all fit into the room."""
        return self.room // max(1, clients)
