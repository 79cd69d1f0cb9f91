"""What a message that has come occupies here, and who hears when it is taken.

Made by peers (netq/peer.py), kept and counted by the inbox under its lock.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple

from netq.utils.stream import Stream


class Room:
    """What the untaken messages of one lane occupy.

    `freed(cost)` is called in the thread that takes, whenever `stride` bytes of it have been taken.
    """

    __slots__ = ("_stride", "_taken", "freed")

    def __init__(self, freed: Callable[[int], object], stride: int) -> None:
        self.freed = freed
        self._stride = stride
        self._taken = 0

    def count(self, cost: int) -> int:
        """Add what was taken; return what to report now. Under the inbox's lock."""
        self._taken += cost
        if self._taken < self._stride:
            return 0
        due, self._taken = self._taken, 0
        return due

    def settle(self) -> None:
        """Report what was not reported, and all from now on. Under the inbox's lock."""
        due, self._taken, self._stride = self._taken, 0, 0
        if due:
            self.freed(due)


class Item(NamedTuple):
    """A message here: whose, what, and the room that it occupies."""

    peer: uuid.UUID
    stream: Stream
    room: Room
    cost: int
