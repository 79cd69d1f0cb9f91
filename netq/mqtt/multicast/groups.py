"""A server's groups, and the members of each put. Pure: `later` calls a function after a pause.

A put gets its members when its first block comes: the peers whose links send packets of full size, or soon will. A link
that is slow, or comes later, gets the message by unicast. Puts with the same members share a group, which is kept for
the next one. A member that stalls or is lost leaves the current puts. The others go on in a new group, because the
broker would queue the blocks of the old one for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from netq.mqtt.multicast.group import TICKS, UNICAST, Block, Group, Member
from netq.mqtt.packet import Kind

LARGE = 1024 * 1024  # bytes of a message that is worth waiting for members whose packets grow
KEPT = 4  # groups; a client is a member of 8 at most
STALL = 1.0  # seconds without progress, after which members stall
_PUTS = 64  # whose members are remembered; a put that is forgotten gets members again


@dataclass
class _Put:
    audience: tuple[uuid.UUID, ...]  # kept, so that its id is no other put's
    members: frozenset[Member]  # those that go by a group; it takes two


class Groups:
    """The groups of one server. `find` returns the links of peers; `silence`: seconds for which a link may wait, as
    nothing else of it passes meanwhile.
    """

    def __init__(
        self,
        find: Callable[[tuple[uuid.UUID, ...]], Iterable[Member]],
        publish: Callable[[str, bytes], None],
        later: Callable[[float, Callable[[], None]], object],
        silence: float = STALL,
    ) -> None:
        self._find = find
        self._publish = publish
        self._later = later
        self._pause = min(STALL, silence) / TICKS  # seconds between two ticks
        self._ticking = False
        self._puts: dict[int, _Put] = {}  # by the id of the audience: one object for each put
        self._groups: dict[frozenset[Member], Group] = {}  # the one used last at the end

    def place(self, member: Member, block: Block) -> bytes | None:
        """Return a reference to the member's block, or UNICAST; None: it has to wait, and will be woken."""
        put = self._puts.get(id(block.audience)) or self._begin(block)
        if member not in put.members or len(put.members) < 2:
            return UNICAST
        group = self._groups.pop(put.members, None) or self._gather(put.members)
        self._groups[put.members] = group
        reference = group.place(member, block)
        self._tick_later()
        return reference

    def acked(self, member: Member, number: int) -> int:
        """A member's packets up to this number are used up; return the bytes of the largest block among them."""
        return max([group.acked(member, number) for group in self._groups.values()], default=0)

    def joined(self, member: Member, id: str) -> None:
        """A client has subscribed."""
        for group in [group for group in self._groups.values() if group.id == id]:
            group.joined(member)

    def lost(self, member: Member) -> None:
        """A link is gone, or stalls: the puts of the moment, and their groups, go on without it."""
        for put in self._puts.values():
            put.members -= {member}
        for members in [members for members in self._groups if member in members]:
            self._dissolve(members)

    def _begin(self, block: Block) -> _Put:
        able = frozenset(member for member in self._find(block.audience) if member.pace.full or member.pace.growing)
        if block.stream.nbytes < LARGE and not all(member.pace.full for member in able):
            able = frozenset()
        put = self._puts[id(block.audience)] = _Put(block.audience, able)
        if len(self._puts) > _PUTS:
            del self._puts[next(iter(self._puts))]
        return put

    def _gather(self, members: frozenset[Member]) -> Group:
        if len(self._groups) >= KEPT:
            self._give_up(next(iter(self._groups)))
        group = Group(members, self._publish)
        for member in members:
            member.command(Kind.JOIN, group.id)
        return group

    def _give_up(self, members: frozenset[Member]) -> None:
        """Make room. The puts that still have this group go on by unicast: groups that took turns would only join."""
        for put in self._puts.values():
            if put.members == members:
                put.members = frozenset()
        self._dissolve(members)

    def _dissolve(self, members: frozenset[Member]) -> None:
        group = self._groups.pop(members)
        for member in members:
            member.command(Kind.LEAVE, group.id)
        group.wake()

    def _tick_later(self) -> None:
        if not self._ticking and any(group.waiting for group in self._groups.values()):
            self._ticking = True
            self._later(self._pause, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        for member in [member for group in self._groups.values() for member in group.tick()]:
            self.lost(member)
        self._tick_later()
