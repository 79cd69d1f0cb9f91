"""One group: members that subscribe to a topic, and the blocks on it that not all of them have passed. Pure.

The first member that comes with a block has it published; the others refer to its number. At most WINDOW blocks are
outstanding; a member that is further ahead waits.

    starting ──all have joined, and their packets have grown──► open ──a member stalls or is lost──► dissolved

Members *stall* if another one waits for them, and no member of the group has made progress for TICKS ticks. Progress of
one is enough, because a busy machine or a slow uplink delays all. A tick is a call, not a time: a server that did not
run for a while has not learned that its clients are slow.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from netq.mqtt import packet
from netq.mqtt.congestion import CongestionControl
from netq.mqtt.packet import Kind
from netq.mqtt.topic import new_id
from netq.mqtt.window import Window
from netq.utils.stream import Stream

WINDOW = 8  # blocks outstanding; a client has to keep as many
TICKS = 4  # without progress, after which members stall
UNICAST = b""  # in the place of a reference


class Block(NamedTuple):
    """Some bytes of a message for several peers, which the links of all of them cut alike."""

    stream: Stream
    start: int
    audience: tuple[uuid.UUID, ...]  # the peers: one object for each put
    buffers: list[memoryview]


class Member(Protocol):
    """What a group asks of a link."""

    window: Window
    pace: CongestionControl

    def command(self, kind: Kind, group: str) -> None:
        """Send JOIN or LEAVE."""

    def wake(self) -> None:
        """Try again to send."""


class _Outstanding(NamedTuple):
    number: int
    put: tuple[uuid.UUID, ...]
    start: int
    size: int
    missing: dict[Member, int]  # that have yet to pass it; the packet that refers to it, or 0


class Group:
    """A topic, its members, and its outstanding blocks. `publish` takes the group's id, and a block."""

    def __init__(self, members: frozenset[Member], publish: Callable[[str, bytes], None]) -> None:
        self.id = new_id()
        self.members = members
        self._publish_on = publish
        self._joining = set(members)
        self._growing = {member for member in members if not member.pace.full}
        self.waiting: set[Member] = set()  # for others
        self._outstanding: deque[_Outstanding] = deque()
        self._published = 0
        self._still = 0  # ticks without progress

    def joined(self, member: Member) -> None:
        """A member has subscribed."""
        self._ready(self._joining, member)

    def place(self, member: Member, block: Block) -> bytes | None:
        """Return a reference to the member's block, or UNICAST; None: it has to wait, and will be woken."""
        self._ready(self._growing, member)  # it has a whole block: its packets have grown
        if self._joining or self._growing:
            self.waiting.add(member)
            return None
        put = [other for other in self._outstanding if other.put is block.audience]
        found = next((other for other in put if other.start == block.start), None)
        if found is None:
            if any(other.start > block.start for other in put):
                return UNICAST  # the others are ahead; it catches up
            if len(self._outstanding) >= WINDOW:
                self.waiting.add(member)
                return None
            found = self._publish(block)
        elif any(other.missing.get(member, 1) for other in self._outstanding if other.number > found.number):
            return UNICAST  # references rise; its lanes take turns in another order
        found.missing[member] = member.window.sent + 1
        return packet.reference(self.id, found.number)

    def acked(self, member: Member, number: int) -> int:
        """A member's packets up to this number are used up; return the bytes of the largest block among them."""
        passed = [block for block in self._outstanding if 0 < block.missing.get(member, 0) <= number]
        if not passed:
            return 0
        self._still = 0
        for block in self._outstanding:
            if block.number <= passed[-1].number:
                block.missing.pop(member, None)
        if not self._outstanding[0].missing:
            self.wake()
        while self._outstanding and not self._outstanding[0].missing:
            self._outstanding.popleft()
        return max(block.size for block in passed)

    def tick(self) -> set[Member]:
        """Return the members that stall."""
        self._still = self._still + 1 if self.waiting else 0
        if self._still <= TICKS:
            return set()
        return self._joining | self._growing or set(self._outstanding[0].missing)

    def wake(self) -> None:
        """Let the members that wait try again."""
        waiting, self.waiting = self.waiting, set()
        for member in waiting:
            member.wake()

    def _ready(self, missing: set[Member], member: Member) -> None:
        if member in missing:
            missing.remove(member)
            self._still = 0
            if not self._joining and not self._growing:
                self.wake()

    def _publish(self, block: Block) -> _Outstanding:
        self._published += 1
        payload = b"".join([packet.block(self._published), *block.buffers])
        self._publish_on(self.id, payload)
        missing = dict.fromkeys(self.members, 0)
        self._outstanding.append(_Outstanding(self._published, block.audience, block.start, len(payload), missing))
        return self._outstanding[-1]
