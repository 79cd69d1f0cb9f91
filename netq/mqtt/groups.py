"""A server's groups (netq/mqtt/group.py): who is in one, and which message has which. Pure: the time is an argument.

The clients of one put that read at one pace are a group, with a topic of its own that they all subscribe to. One that
is slow is left behind, and gets the rest on its own topic. The others then move to another group: the broker must not
go on filling its queue.

    new ──JOIN──► joining ──JOINED of all──► ready ──► dissolved (LEAVE): one was lost, or slow, or it is not used
                           whose packets are large

A group gives way to another only when it is idle, and a message that has lost its group so, or found no room for one,
goes alone to its end: groups that took turns would do nothing but join.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from typing import NamedTuple

from netq.mqtt.group import ALONE_NOW, STALL, Block, Group, Member, Publication
from netq.mqtt.pace import LATE
from netq.mqtt.packet import Kind

LEAST = 64 * 1024  # bytes of a message that is worth a group
LARGE = 1024 * 1024  # of one that is worth waiting for members whose packets may yet grow
KEPT = 4  # groups that are kept for the next put to the same clients
ALONE = 10.0  # seconds for which one that was left behind, or was lost with a block outstanding, is in no group
ALONE_MOST = 600.0  # to which they double each time, until a block has reached it


class _Penalty(NamedTuple):
    until: float
    seconds: float


class Groups:
    """The groups of one server. `find` returns the links of peers that could be members; the rest is as for a Group."""

    def __init__(
        self, find: Callable[[tuple[uuid.UUID, ...]], list[Member]], late: float = LATE, silence: float = math.inf
    ) -> None:
        self._find = find
        self._late = late
        self._silence = silence
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

    def joined(self, member: Member, id: str, now: float) -> None:
        """A client has subscribed."""
        for group in self._groups.values():
            if group.id == id and member in group.members:
                group.joined(member, now)

    def passed(self, member: Member, id: str, number: int, now: float) -> None:
        """A client has used up a block that its link referred to."""
        for group in self._groups.values():
            if group.id == id and member in group.members:
                self._alone.pop(member.client, None)
                group.passed(member, number, now)

    def lost(self, member: Member, now: float) -> None:
        """A link is gone, and its groups with it; perhaps because no block reaches this client."""
        groups = [group for group in self._groups.values() if member in group.members]
        if any(group.owes(member) for group in groups):
            self._leave_behind(member, now)
        for group in groups:
            self._dissolve(group, gone=member)

    def clear(self) -> None:
        """All links are about to be lost, by nobody's fault."""
        self._groups.clear()

    def tick(self, now: float) -> None:
        """Leave behind who is slow."""
        for group in list(self._groups.values()):
            if slow := group.slow(now):
                for member in slow:
                    self._leave_behind(member, now)
                self._dissolve(group)

    def deadline(self) -> float:
        """When to `tick`, seconds from now on; never if nothing is under way."""
        return min(STALL, self._silence) / 4 if any(group.busy for group in self._groups.values()) else math.inf

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
        group = Group(able, now, self._late, self._silence)
        for other in able:
            other.command(Kind.JOIN, group.id)
        return group

    def _make_room(self, now: float) -> bool:
        """Dissolve the idle group that was used longest ago, if there are too many."""
        if len(self._groups) < KEPT:
            return True
        idle = next((group for group in self._groups.values() if not group.busy), None)
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
