"""A client's end: the groups that one link is a member of, and their blocks until they are referred to. Pure.

The blocks of a group come in the order of their numbers. If a later one than the one referred to has come, that one is
lost: QoS 0 may lose, and then the link is to be lost too.
"""

from __future__ import annotations

from collections.abc import Callable

from netq.errors import ProtocolError
from netq.mqtt import packet
from netq.mqtt.packet import Kind, Packet

ROOM = 16  # blocks kept of a group; twice what a server publishes ahead
_GROUPS = 8  # of one link


class ReorderBuffer:
    """The blocks of one group."""

    def __init__(self) -> None:
        self._blocks: dict[int, memoryview] = {}
        self._last = 0

    def put(self, number: int, data: memoryview) -> None:
        """Keep a block; ignore one that comes again, or late."""
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


class Receiver:
    """The groups of one link. `subscribe` and `unsubscribe` take a group's id."""

    def __init__(self, subscribe: Callable[[str], None], unsubscribe: Callable[[str], None]) -> None:
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._buffers: dict[str, ReorderBuffer] = {}

    def control(self, kind: Kind, group: str) -> None:
        """Take JOIN or LEAVE; raises ProtocolError."""
        if kind is Kind.JOIN:
            if len(self._buffers) >= _GROUPS or group in self._buffers:
                raise ProtocolError(f"JOIN of {group}: one group too many")
            self._buffers[group] = ReorderBuffer()
            self._subscribe(group)
        elif self._buffers.pop(group, None) is not None:
            self._unsubscribe(group)

    def put(self, group: str, payload: bytes | bytearray) -> bool:
        """Keep a block; return whether the link is a member of its group. Raises ProtocolError."""
        if group in self._buffers:
            self._buffers[group].put(*packet.read_block(payload))
        return group in self._buffers

    def take(self, came: Packet) -> memoryview | None:
        """Return the bytes that BLOCK stands for; None if the block has yet to come. Raises ProtocolError."""
        group, number, before = packet.read_reference(came)
        if group not in self._buffers:
            raise ProtocolError(f"BLOCK of a group {group} that was not joined")
        block = self._buffers[group].take(number)
        return memoryview(b"".join([before, block])) if block is not None and before else block

    def close(self) -> None:
        """The link is gone."""
        for group in list(self._buffers):
            self.control(Kind.LEAVE, group)
