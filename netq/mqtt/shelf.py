"""A client's side of one group: blocks that came, until the link says where they belong. Pure.

Blocks come in the order of their numbers, at most a few before they are asked for. One that is asked for and was passed
is lost: QoS 0 may lose, and then the link is to be lost too.
"""

from __future__ import annotations

from netq.errors import ProtocolError

ROOM = 16  # blocks kept; twice what a server sends ahead


class Shelf:
    """The blocks of one group."""

    def __init__(self) -> None:
        self._blocks: dict[int, memoryview] = {}
        self._last = 0

    def put(self, number: int, data: memoryview) -> None:
        """Keep a block; one that comes again, or late, is nothing to anybody."""
        if number <= self._last:
            return
        self._last = number
        self._blocks[number] = data
        if len(self._blocks) > ROOM:
            del self._blocks[next(iter(self._blocks))]

    def take(self, number: int) -> memoryview | None:
        """Return a block, or None if it has yet to come; forget those before it. Raises ProtocolError if it is lost."""
        for passed in [known for known in self._blocks if known < number]:
            del self._blocks[passed]
        found = self._blocks.pop(number, None)
        if found is None and number <= self._last:
            raise ProtocolError(f"block {number} of a group is lost, block {self._last} has come")
        return found
