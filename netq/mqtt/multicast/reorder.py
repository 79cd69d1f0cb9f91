"""The client's part of multicast: the groups of one link, and their blocks until a reference arrives. Pure.

The blocks of a group arrive in the order of their numbers. If a later block has arrived but the one of the reference
has not, it is lost: QoS 0 does not guarantee delivery. The link is then lost too, and the session resumes.
"""

from __future__ import annotations

from collections.abc import Callable

from netq.errors import ProtocolError
from netq.mqtt import packet
from netq.mqtt.packet import Packet, PacketKind

MAX_BLOCKS = 16  # blocks kept of a group; twice the number that a server may have outstanding
_GROUPS = 8  # groups of one link


class ReorderBuffer:
    """The blocks of one group."""

    def __init__(self) -> None:
        self._blocks: dict[int, memoryview] = {}
        self._last = 0

    def put(self, number: int, data: memoryview) -> None:
        """Keep a block. Ignore a duplicate or an old one."""
        if number <= self._last:
            return
        self._last = number
        self._blocks[number] = data
        if len(self._blocks) > MAX_BLOCKS:
            del self._blocks[next(iter(self._blocks))]

    def take(self, number: int) -> memoryview | None:
        """Return a block, or None if it has not arrived; forget earlier ones. Raises ProtocolError if it is lost."""
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

    def control(self, kind: PacketKind, group: str) -> None:
        """Process JOIN or LEAVE; raises ProtocolError."""
        if kind is PacketKind.JOIN:
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

    def take(self, incoming: Packet) -> memoryview | None:
        """Return the bytes that a BLOCK packet refers to; None if the block has not arrived. Raises ProtocolError."""
        group, number, before = packet.read_reference(incoming)
        if group not in self._buffers:
            raise ProtocolError(f"BLOCK of a group {group} that was not joined")
        block = self._buffers[group].take(number)
        return memoryview(b"".join([before, block])) if block is not None and before else block

    def close(self) -> None:
        """Leave all groups: the link has ended."""
        for group in list(self._buffers):
            self.control(PacketKind.LEAVE, group)
