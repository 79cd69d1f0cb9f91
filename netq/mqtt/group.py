"""A server's side of groups: what goes to several clients enters the broker once. Pure: the time is an argument.

The clients of one put that read at one pace are a group, with a topic of its own that they all subscribe to. A block of
the message is published there once, with a number; the link of each carries a reference in its place. All of it goes at
the pace of the slowest, who may be LEAD blocks behind; one that makes no progress for STALL seconds is left behind, and
gets the rest on its own topic. The others then move to another group: the broker must not go on filling its queue.

    new ──JOIN──► joining ──JOINED of all──► ready ──► dissolved (LEAVE): one was lost, or slow, or it is not used
                           whose packets are large

A group gives way to another only when it is idle, and a message that has lost its group so, or found no room for one,
goes alone to its end: groups that took turns would do nothing but join.
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
LARGE = 1024 * 1024  # of one that is worth waiting for members whose packets may yet grow
LEAD = 8  # blocks that the slowest member may be behind
KEPT = 4  # groups that are kept for the next put to the same clients
JOIN = 1.0  # seconds within which a client has to have joined
STALL = 1.0  # seconds without progress
ALONE = 10.0  # seconds for which one that was left behind, or was lost with a block outstanding, is in no group
ALONE_MOST = 600.0  # to which they double each time, until a block has reached it


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


class _Entry(NamedTuple):
    number: int
    stream: Stream
    start: int


class _Penalty(NamedTuple):
    until: float
    seconds: float


class Group:
    """Members, and the blocks that not all of them have passed."""

    def __init__(self, members: Iterable[Member], now: float) -> None:
        self.id = new_id()
        self.members = {member: _Standing(since=now) for member in members}
        self.joining = set(self.members)
        self.growing = {member for member in self.members if not member.full}
        self.born = now
        self.waiting: set[Member] = set()
        self.entries: deque[_Entry] = deque()
        self.message: tuple[int, tuple[uuid.UUID, ...]] = (0, ())  # that it was gathered for last: id, audience
        self._last = 0

    @property
    def coming(self) -> set[Member]:
        """Those for whom the others wait: they are to join, and to come with a whole block."""
        return self.joining | self.growing

    @property
    def idle(self) -> bool:
        """Whether nobody would miss it now."""
        return not self.coming and not self.entries

    @property
    def behind(self) -> int:
        """The block that the slowest has passed."""
        return min(standing.passed for standing in self.members.values())

    def find(self, block: Block) -> _Entry | None:
        """The entry of a block that was published and that not all have passed."""
        return next((e for e in self.entries if e.stream is block.stream and e.start == block.start), None)

    def carries(self, stream: Stream) -> bool:
        """Whether a block of it was published that not all have passed."""
        return any(entry.stream is stream for entry in self.entries)

    def place(self, member: Member, block: Block, now: float) -> Publication:
        """Say how a member's block goes."""
        self._arrive(member)
        standing, entry = self.members[member], self.find(block)
        if entry is None and self._is_past(block):
            return ALONE_NOW
        if entry is None and not self.coming and self._last - self.behind < LEAD:
            return self._publish(standing, block, now)
        if entry is None or self.coming:
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
        if self.coming:
            return list(self.coming) if now >= self.born + JOIN else []
        if not self.entries:
            return []
        behind, patience = self.behind, STALL if self.waiting else 5 * STALL
        return [m for m, s in self.members.items() if s.passed == behind and now >= s.since + patience]

    def wake(self) -> None:
        """Let those who wait try again."""
        waiting, self.waiting = self.waiting, set()
        for member in waiting:
            member.wake()

    def _arrive(self, member: Member) -> None:
        """It has a whole block: its packets have grown."""
        if member in self.growing:
            self.growing.remove(member)
            if not self.coming:
                self.wake()

    def _is_past(self, block: Block) -> bool:
        """Whether others have published what comes behind: who began later catches up alone."""
        return any(entry.stream is block.stream and entry.start > block.start for entry in self.entries)

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
        self._alone: dict[str, _Penalty] = {}  # clients
        self._single: dict[tuple[int, tuple[uuid.UUID, ...]], float] = {}  # messages without a group; last seen when

    def place(self, member: Member, block: Block, now: float) -> Publication:
        """Say how a member's block goes: alone, or by a group."""
        message = id(block.stream), block.audience  # the id may be that of an earlier one: then it had the same group
        if self._goes_alone(message, now) and block.start:
            return ALONE_NOW
        group = self._found(message, block) or self._gather(member, block, now)
        if group is None or member not in group.members:  # one group for a message: those who come late go alone
            return ALONE_NOW
        return group.place(member, block, now)

    def joined(self, member: Member, id: str) -> None:
        """A client has subscribed."""
        for group in self._groups.values():
            if group.id == id and member in group.joining:
                group.joining.remove(member)
                if not group.coming:
                    group.wake()

    def passed(self, member: Member, id: str, number: int, now: float) -> None:
        """A client has used up a block that its link referred to."""
        for group in self._groups.values():
            if group.id == id and member in group.members:
                self._alone.pop(member.client, None)
                group.passed(member, number, now)

    def lost(self, member: Member, now: float) -> None:
        """A link is gone, and its groups with it; perhaps because no block reaches this client."""
        groups = [group for group in self._groups.values() if member in group.members]
        if any(group.members[member].referred > group.members[member].passed for group in groups):
            self._leave_behind(member, now)
        for group in groups:
            self._dissolve(group, gone=member)

    def clear(self) -> None:
        """All links are about to be lost, by nobody's fault."""
        self._groups.clear()

    def tick(self, now: float) -> None:
        """Leave behind who is slow."""
        for group in list(self._groups.values()):
            if late := group.late(now):
                for member in late:
                    self._leave_behind(member, now)
                self._dissolve(group)

    def deadline(self) -> float:
        """When to `tick`, seconds from now on; never if nothing is under way."""
        busy = any(group.coming or group.entries for group in self._groups.values())
        return STALL / 4 if busy else math.inf

    def _found(self, message: tuple[int, tuple[uuid.UUID, ...]], block: Block) -> Group | None:
        """The group that a message has; none if it begins, perhaps once more: the user may keep the stream."""
        group = next((g for g in self._groups.values() if g.message == message), None)
        return group if group is not None and (block.start or group.carries(block.stream)) else None

    def _gather(self, member: Member, block: Block, now: float) -> Group | None:
        if self._is_alone(member, now):
            return None
        there = [m for m in self._find(block.audience) if not self._is_alone(m, now)]
        able = frozenset(m for m in there if m.full or m.undecided(now))
        if member not in able or len(able) < 2:
            return None
        if block.stream.nbytes < LARGE and not all(m.full for m in able):
            return None
        message = id(block.stream), block.audience
        self._single.pop(message, None)
        if able not in self._groups and not self._make_room(now):
            self._single[message] = now
            return None
        for earlier in [group for group in self._groups.values() if group.message == message]:
            earlier.message = 0, ()  # of when the stream was put before
        group = self._groups.pop(able, None) or self._new(able, now)
        group.message = message
        self._groups[able] = group
        return group

    def _new(self, able: frozenset[Member], now: float) -> Group:
        group = Group(able, now)
        for other in able:
            other.command(Kind.JOIN, group.id)
        return group

    def _make_room(self, now: float) -> bool:
        """Dissolve the idle group that was used longest ago, if there are too many."""
        if len(self._groups) < KEPT:
            return True
        idle = next((group for group in self._groups.values() if group.idle), None)
        if idle is not None:
            self._single[idle.message] = now
            self._dissolve(idle)
        return idle is not None

    def _goes_alone(self, message: tuple[int, tuple[uuid.UUID, ...]], now: float) -> bool:
        """Whether a message is to have no group; one not seen for a while is over, and its id may be another's."""
        for over in [known for known, seen in self._single.items() if now > seen + STALL]:
            del self._single[over]
        if message in self._single:
            self._single[message] = now
        return message in self._single

    def _is_alone(self, member: Member, now: float) -> bool:
        penalty = self._alone.get(member.client)
        return penalty is not None and penalty.until > now

    def _leave_behind(self, member: Member, now: float) -> None:
        for over in [client for client, penalty in self._alone.items() if penalty.until + ALONE_MOST < now]:
            del self._alone[over]
        last = self._alone.get(member.client)
        seconds = ALONE if last is None else min(ALONE_MOST, 2 * last.seconds)
        self._alone[member.client] = _Penalty(now + seconds, seconds)

    def _dissolve(self, group: Group, gone: Member | None = None) -> None:
        del self._groups[frozenset(group.members)]
        for member in group.members:
            if member is not gone:
                member.command(Kind.LEAVE, group.id)
        group.wake()
