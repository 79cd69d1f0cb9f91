"""One multicast group: members that subscribe to a topic, and the blocks on it that some have not processed yet. Pure.

The first member that reaches a block publishes it; the others only refer to its number. At most WINDOW blocks are
outstanding. A member that is further ahead waits.

    starting ──all have joined, and their packets have grown──► open ──a member stalls or is lost──► dissolved

Members *stall* if another one waits for them, and no member of the group has made progress for TICKS ticks. Progress of
one is enough, because a busy machine or a slow uplink delays all. Ticks are timer calls, not
elapsed time: after a pause of the server's own process, its clients do not count as slow.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from netq.mqtt import packet
from netq.mqtt.congestion import CongestionControl
from netq.mqtt.packet import PacketKind
from netq.mqtt.topic import new_id
from netq.mqtt.window import Window
from netq.protocol.sender import Sealed
from netq.utils.stream import Stream

WINDOW = 8  # outstanding blocks; a client must be able to keep as many
TICKS = 4  # ticks without progress, after which members stall
UNICAST = b""  # returned instead of a reference


class Block(NamedTuple):
    """A part of a message for several peers, at the same offsets on the links of all of them."""

    stream: Stream
    start: int
    audience: tuple[uuid.UUID, ...]  # the peers; the same tuple object for all blocks of one put
    buffers: list[memoryview]
    sealed: Sealed | None = None  # what `buffers` are of: links whose blocks differ in it cannot share a publication


class Member(Protocol):
    """The interface of a link that a group uses."""

    window: Window
    congestion: CongestionControl

    def send_control(self, kind: PacketKind, group: str) -> None:
        """Send JOIN or LEAVE."""

    def wake(self) -> None:
        """Try to send again."""


class _Outstanding(NamedTuple):
    number: int
    put: tuple[uuid.UUID, ...]
    start: int
    size: int
    sealed: Sealed | None  # kept for the members that have not come so far: it serves them too
    missing: dict[Member, int]  # members that have not processed it: the packet with the reference, or 0


class Group:
    """A topic, its members, and its outstanding blocks. `publish` takes the group's id, and a block."""

    def __init__(self, members: frozenset[Member], publish: Callable[[str, bytes], None]) -> None:
        self.id = new_id()
        self.members = members
        self._publish_on = publish
        self._joining = set(members)
        self._growing = {member for member in members if not member.congestion.at_max_size}
        self.waiting: set[Member] = set()  # blocked until other members make progress
        self._outstanding: deque[_Outstanding] = deque()
        self._published = 0
        self._idle_ticks = 0  # ticks in a row without progress

    def joined(self, member: Member) -> None:
        """A member has subscribed."""
        self._mark_ready(self._joining, member)

    def refer(self, member: Member, block: Block) -> bytes | None:
        """Return a reference to the block, publishing it first if necessary, or UNICAST.

        None: the member must wait; `wake` is called when it may try again.
        """
        self._mark_ready(self._growing, member)  # a whole block shows that its packets have grown
        if self._joining or self._growing:
            self.waiting.add(member)
            return None
        # A block is published once, by the first member that reaches it. There are exceptions: the other members
        # are past it; WINDOW blocks are outstanding, as many as a client must keep; or this member has referred to a
        # later block already, and its client has dropped the earlier ones by then. Nor does a publication serve a
        # member whose block was sealed another time: the member expects other bytes.
        put = [other for other in self._outstanding if other.put is block.audience]
        found = next((other for other in put if other.start == block.start), None)
        if found is None:
            if any(other.start > block.start for other in put):
                return UNICAST  # the other members are ahead: it catches up alone
            if len(self._outstanding) >= WINDOW:
                self.waiting.add(member)
                return None
            found = self._publish(block)
        elif found.sealed is not block.sealed or any(
            other.missing.get(member, 1) for other in self._outstanding if other.number > found.number
        ):
            return UNICAST  # references must rise; its lanes were served in another order
        found.missing[member] = member.window.sent + 1
        return packet.reference(self.id, found.number)

    def acked(self, member: Member, number: int) -> int:
        """Record that a member has processed its packets up to `number`; return the bytes of their largest block."""
        # Clients process blocks in the order of their numbers, and drop those before the one that is referred to. So
        # the last block that is covered covers all before it, also those that this member has got by unicast.
        covered = [block for block in self._outstanding if 0 < block.missing.get(member, 0) <= number]
        if not covered:
            return 0
        self._idle_ticks = 0
        for block in self._outstanding:
            if block.number <= covered[-1].number:
                block.missing.pop(member, None)
        if not self._outstanding[0].missing:
            self.wake()
        while self._outstanding and not self._outstanding[0].missing:
            self._outstanding.popleft()
        return max(block.size for block in covered)

    def tick(self) -> set[Member]:
        """Return the members that stall."""
        self._idle_ticks = self._idle_ticks + 1 if self.waiting else 0
        if self._idle_ticks <= TICKS:
            return set()
        return self._joining | self._growing or set(self._outstanding[0].missing)

    def wake(self) -> None:
        """Wake all waiting members."""
        waiting, self.waiting = self.waiting, set()
        for member in waiting:
            member.wake()

    def _mark_ready(self, missing: set[Member], member: Member) -> None:
        if member in missing:
            missing.remove(member)
            self._idle_ticks = 0
            if not self._joining and not self._growing:
                self.wake()

    def _publish(self, block: Block) -> _Outstanding:
        self._published += 1
        payload = b"".join([packet.block(self._published), *block.buffers])
        self._publish_on(self.id, payload)
        missing = dict.fromkeys(self.members, 0)
        self._outstanding.append(
            _Outstanding(self._published, block.audience, block.start, len(payload), block.sealed, missing)
        )
        return self._outstanding[-1]
