"""One group of a server's clients: what goes to all of them enters the broker once. Pure: the time is an argument.

A block of a message is published on the group's topic, with a number; the link of each member carries a reference in
its place. All of it goes at the pace of the slowest, who may be `lead` blocks behind.

Who is slow is told by the others, not by the clock: a machine that is busy delays them all. A member holds the others
up when it makes no progress for STALL seconds, and for SPREAD times what half of them have needed, after these have
passed a block. If half of them have not, the way of all is slow: then less is under way (`lead`), so that what lies in
front of a heartbeat takes no longer than LATE. One that does not even come for a block is given STALL seconds.
"""

from __future__ import annotations

import math
import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from netq.mqtt.pace import LATE
from netq.mqtt.packet import Kind
from netq.mqtt.topic import new_id
from netq.utils.stream import Stream

LEAD = 8  # blocks that the slowest member may be behind, on a way that is fast
JOIN = 1.0  # seconds without anybody who joins
STALL = 1.0  # seconds without progress
SPREAD = 2  # times what half of the members needed for a block, that the others may need beyond it
PATIENCE = 5.0  # seconds, where nobody waits, or none of the members shows how fast the others should be


class Block(NamedTuple):
    """Some bytes of a message for several peers; the same for each of their links."""

    stream: Stream  # which message: the very object
    start: int
    audience: tuple[uuid.UUID, ...]
    buffers: list[memoryview]


class Member(Protocol):
    """What a group asks of a link."""

    client: str  # whose links come and go

    @property
    def full(self) -> bool:
        """Whether its way is known to bear whole blocks."""

    def undecided(self, now: float) -> bool:
        """Whether that will be known soon."""

    def command(self, kind: Kind, group: str) -> None:
        """Send JOIN or LEAVE."""

    def wake(self) -> None:
        """Try again to send."""


class Publication(NamedTuple):
    """How a block goes: by reference to `number` of `group`, which is to be published first if `new`."""

    group: str
    number: int
    new: bool


WAIT = Publication("", 0, new=False)  # not now: the member will be woken
ALONE_NOW = Publication("", -1, new=False)  # on the member's own topic


@dataclass(eq=False)
class _Standing:
    """How far a member is, in numbers of blocks."""

    referred: int = 0
    passed: int = 0
    since: float = 0.0  # when it made progress


@dataclass(eq=False)
class _Entry:
    """A block that was published and that not all have passed."""

    number: int
    stream: Stream
    start: int
    born: float
    passed: int = 0  # members
    half: float = math.inf  # when half of them had passed it


class Group:
    """Members, and the blocks that not all of them have passed. `late`: seconds that a block should not take;
    `silence`: for which one may wait for others, as nothing else of its link passes meanwhile.
    """

    def __init__(self, members: Iterable[Member], now: float, late: float = LATE, silence: float = math.inf) -> None:
        self.id = new_id()
        self.members = {member: _Standing(since=now) for member in members}
        self.message: tuple[int, tuple[uuid.UUID, ...]] = (0, ())  # that it was gathered for last: id, audience
        self._joining = set(self.members)
        self._growing = {member for member in self.members if not member.full}
        self._waiting: set[Member] = set()
        self._entries: deque[_Entry] = deque()
        self._last = 0  # block that was published
        self._lead = 1  # blocks: how fast the way is, nobody knows yet
        self._late = late
        self._stall, self._patience = min(STALL, silence), min(PATIENCE, silence)
        self._born = self._moved = now  # when most of the members made progress

    @property
    def coming(self) -> set[Member]:
        """Those for whom the others wait: they are to join, and to come with a whole block."""
        return self._joining | self._growing

    @property
    def busy(self) -> bool:
        """Whether something is under way, or somebody."""
        return bool(self.coming or self._entries)

    def carries(self, stream: Stream) -> bool:
        """Whether a block of it was published that not all have passed."""
        return any(entry.stream is stream for entry in self._entries)

    def owes(self, member: Member) -> bool:
        """Whether it was referred to a block that it has not passed."""
        return self.members[member].referred > self.members[member].passed

    def joined(self, member: Member, now: float) -> None:
        """A member has subscribed."""
        self._come(self._joining, member, now)

    def place(self, member: Member, block: Block, now: float) -> Publication:
        """Say how a member's block goes."""
        self._come(self._growing, member, now)  # it has a whole block: its packets have grown
        standing, entry = self.members[member], self._find(block)
        if entry is None and self._is_past(block):
            return ALONE_NOW
        if entry is None and not self.coming and self._last - self._behind < self._lead:
            return self._publish(standing, block, now)
        if entry is None or self.coming:
            self._waiting.add(member)
            return WAIT
        if entry.number <= standing.referred:  # its lanes take turns in another order than those of the others
            return ALONE_NOW
        standing.referred = entry.number
        return Publication(self.id, entry.number, new=False)

    def passed(self, member: Member, number: int, now: float) -> None:
        """A member has used a block up."""
        standing = self.members[member]
        for entry in self._entries:
            if standing.passed < entry.number <= number:
                self._count(entry, now)
        standing.passed, standing.since = number, now
        while self._entries and self._entries[0].passed == len(self.members):
            self._entries.popleft()
            self.wake()

    def slow(self, now: float) -> list[Member]:
        """Those who have not come in time, or hold the others up."""
        if self.coming:
            over = min(self._moved + min(JOIN, self._patience), self._born + self._patience)
            return list(self.coming) if now >= over else []
        if not self._entries:
            return []
        first, stall = self._entries[0], self._stall if self._waiting else self._patience
        behind = [(m, s) for m, s in self.members.items() if s.passed < first.number]
        absent = [m for m, s in behind if s.referred < first.number and now >= max(first.born, s.since) + stall]
        if absent:  # not for want of speed: their users do not read, say
            return absent
        if first.half == math.inf:
            since, patience = max(self._moved, first.born), self._patience
        else:
            since = first.half
            patience = max(stall, min(SPREAD * (first.half - first.born), 2 * self._patience))
        return [m for m, s in behind if now >= max(since, s.since) + patience]

    def wake(self) -> None:
        """Let those who wait try again."""
        waiting, self._waiting = self._waiting, set()
        for member in waiting:
            member.wake()

    @property
    def _behind(self) -> int:
        """The block that the slowest has passed."""
        return self._entries[0].number - 1 if self._entries else self._last

    def _find(self, block: Block) -> _Entry | None:
        return next((e for e in self._entries if e.stream is block.stream and e.start == block.start), None)

    def _is_past(self, block: Block) -> bool:
        """Whether others have published what comes behind: who began later catches up alone."""
        return any(entry.stream is block.stream and entry.start > block.start for entry in self._entries)

    def _come(self, missing: set[Member], member: Member, now: float) -> None:
        if member in missing:
            missing.remove(member)
            self._moved = now
            if not self.coming:
                self.wake()

    def _publish(self, standing: _Standing, block: Block, now: float) -> Publication:
        self._last += 1
        self._entries.append(_Entry(self._last, block.stream, block.start, now))
        standing.referred = self._last
        return Publication(self.id, self._last, new=True)

    def _count(self, entry: _Entry, now: float) -> None:
        """One more has passed a block. When half of the members have, it is known how fast the way is."""
        entry.passed += 1
        if entry.passed != (len(self.members) + 1) // 2:
            return
        entry.half = self._moved = now
        if now - entry.born > self._late:
            self._lead = max(1, self._lead // 2)
        elif now - entry.born < self._late / 2:
            self._lead = min(LEAD, 2 * self._lead)
            self.wake()
