"""A server's side of groups: what goes to several clients enters the broker once. Pure: the time is an argument.

The clients of one put that read at one pace are a group, with a topic of its own that they all subscribe to. A block of
the message is published there once, with a number; the link of each carries a reference in its place. All of it goes at
the pace of the slowest, who may be LEAD blocks behind; one that makes no progress for STALL seconds is left behind, and
gets the rest on its own topic. The others then move to another group: the broker must not go on filling its queue.

    new ──JOIN──► joining ──JOINED of all──► ready ──► dissolved (LEAVE): one was lost, or slow, or it is not used
"""

from __future__ import annotations

import math
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from netq.mqtt.packet import Kind
from netq.mqtt.topic import new_id
from netq.utils.stream import Stream

LEAST = 64 * 1024  # bytes of a message that is worth a group
LEAD = 8  # blocks that the slowest member may be behind
KEPT = 4  # groups that are kept for the next put to the same clients
JOIN = 1.0  # seconds within which a client has to have joined
STALL = 1.0  # seconds without progress
ALONE = 10.0  # seconds for which one that was left behind is in no group


class Block(NamedTuple):
    """Some bytes of a message for several peers; the same for each of their links."""

    stream: Stream  # which message: the very object
    start: int
    audience: tuple[uuid.UUID, ...]
    buffers: list[memoryview]


class Member(Protocol):
    """What a group asks of a link."""

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


class _Entry(NamedTuple):
    number: int
    stream: Stream
    start: int


class Group:
    """Members, and the blocks that not all of them have passed."""

    def __init__(self, members: Iterable[Member], now: float) -> None:
        self.id = new_id()
        self.members = {member: _Standing(since=now) for member in members}
        self.joining = set(self.members)
        self.born = now
        self.waiting: set[Member] = set()
        self.entries: deque[_Entry] = deque()
        self.message: tuple[int, tuple[uuid.UUID, ...]] = (0, ())  # that it was gathered for last: id, audience
        self._last = 0

    @property
    def behind(self) -> int:
        """The block that the slowest has passed."""
        return min(standing.passed for standing in self.members.values())

    def find(self, block: Block) -> _Entry | None:
        """The entry of a block that was published and that not all have passed."""
        return next((e for e in self.entries if e.stream is block.stream and e.start == block.start), None)

    def place(self, member: Member, block: Block, now: float) -> Publication:
        """Say how a member's block goes."""
        standing, entry = self.members[member], self.find(block)
        if entry is None and not self.joining and self._last - self.behind < LEAD:
            return self._publish(standing, block, now)
        if entry is None or self.joining:
            self.waiting.add(member)
            return WAIT
        if entry.number <= standing.referred:  # its lanes take turns in another order than those of the others
            return ALONE_NOW
        standing.referred = entry.number
        return Publication(self.id, entry.number, new=False)

    def passed(self, member: Member, number: int, now: float) -> None:
        """A member has used a block up."""
        standing = self.members[member]
        standing.passed, standing.since = number, now
        behind = self.behind
        while self.entries and self.entries[0].number <= behind:
            self.entries.popleft()
            self.wake()

    def late(self, now: float) -> list[Member]:
        """Those who have not joined in time, or hold the others up."""
        if self.joining:
            return list(self.joining) if now >= self.born + JOIN else []
        if not self.entries:
            return []
        behind, patience = self.behind, STALL if self.waiting else 5 * STALL
        return [m for m, s in self.members.items() if s.passed == behind and now >= s.since + patience]

    def wake(self) -> None:
        """Let those who wait try again."""
        waiting, self.waiting = self.waiting, set()
        for member in waiting:
            member.wake()

    def _publish(self, standing: _Standing, block: Block, now: float) -> Publication:
        for other in self.members.values():
            if other.passed == self._last:  # it had nothing to do until now
                other.since = now
        self._last += 1
        self.entries.append(_Entry(self._last, block.stream, block.start))
        standing.referred = self._last
        return Publication(self.id, self._last, new=True)


class Groups:
    """The groups of one server. `find` returns the links of some peers that could be members."""

    def __init__(self, find: Callable[[tuple[uuid.UUID, ...]], list[Member]]) -> None:
        self._find = find
        self._groups: dict[frozenset[Member], Group] = {}  # the one used last at the end
        self._alone: dict[Member, float] = {}  # until when

    def place(self, member: Member, block: Block, now: float) -> Publication:
        """Say how a member's block goes: alone, or by a group."""
        message = id(block.stream), block.audience  # the id may be that of an earlier one: then it had the same group
        group = next((g for g in self._groups.values() if g.message == message), None)
        group = group or self._gather(member, block, now)
        if group is None or member not in group.members:  # one group for a message: those who come late go alone
            return ALONE_NOW
        return group.place(member, block, now)

    def joined(self, member: Member, id: str) -> None:
        """A client has subscribed."""
        for group in self._groups.values():
            if group.id == id and member in group.joining:
                group.joining.remove(member)
                if not group.joining:
                    group.wake()

    def passed(self, member: Member, id: str, number: int, now: float) -> None:
        """A client has used up a block that its link referred to."""
        for group in self._groups.values():
            if group.id == id and member in group.members:
                group.passed(member, number, now)

    def lost(self, member: Member) -> None:
        """A link is gone, and its groups with it."""
        self._alone.pop(member, None)
        for group in [group for group in self._groups.values() if member in group.members]:
            self._dissolve(group, gone=member)

    def tick(self, now: float) -> None:
        """Leave behind who is slow."""
        for group in list(self._groups.values()):
            if late := group.late(now):
                self._alone |= dict.fromkeys(late, now + ALONE)
                self._dissolve(group)

    def deadline(self) -> float:
        """When to `tick`, seconds from now on; never if nothing is under way."""
        busy = any(group.joining or group.entries for group in self._groups.values())
        return STALL / 4 if busy else math.inf

    def _gather(self, member: Member, block: Block, now: float) -> Group | None:
        if self._alone.get(member, 0.0) > now:
            return None
        able = frozenset(m for m in self._find(block.audience) if self._alone.get(m, 0.0) <= now)
        if member not in able or len(able) < 2:
            return None
        group = self._groups.pop(able, None)
        if group is None:
            group = Group(able, now)
            for other in able:
                other.command(Kind.JOIN, group.id)
        group.message = id(block.stream), block.audience
        self._groups[able] = group
        while len(self._groups) > KEPT:
            self._dissolve(next(iter(self._groups.values())))
        return group

    def _dissolve(self, group: Group, gone: Member | None = None) -> None:
        del self._groups[frozenset(group.members)]
        for member in group.members:
            if member is not gone:
                member.command(Kind.LEAVE, group.id)
        group.wake()
