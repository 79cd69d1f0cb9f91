"""A server's groups, and the members of each put. Pure: `call_later` calls a function after a pause.

The members of a put are chosen at its first block: the peers whose links send packets of full size, or are growing. A
slow link, or one that connects later, gets the message by unicast. Puts with the same members share a group, which is
kept for the next put. A member that stalls or is lost leaves the current puts. The others continue in a new group,
because the broker would queue the blocks of the old group for that member.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from netq.mqtt.multicast.group import TICKS, UNICAST, Block, Group, Member
from netq.mqtt.packet import PacketKind

MIN_SIZE_TO_WAIT = 1024 * 1024  # bytes; smaller messages do not wait for members whose packets still grow
MAX_GROUPS = 4  # groups kept; the protocol allows a client 8
STALL_AFTER = 1.0  # seconds without progress after which members stall
_MAX_PUTS = 64  # puts whose members are remembered; a forgotten put chooses members again


@dataclass
class _Put:
    audience: tuple[uuid.UUID, ...]  # keeps the object alive: its id is the key
    members: frozenset[Member]  # the peers in the group; with fewer than two it is unicast


class Groups:
    """The groups of one server.

    `find` returns the links of peers. `silence` is the longest time in seconds that a link may wait for its group,
    because its other lanes wait meanwhile.
    """

    def __init__(
        self,
        find: Callable[[tuple[uuid.UUID, ...]], Iterable[Member]],
        publish: Callable[[str, bytes], None],
        call_later: Callable[[float, Callable[[], None]], object],
        silence: float = STALL_AFTER,
    ) -> None:
        self._find = find
        self._publish = publish
        self._call_later = call_later
        self._tick_interval = min(STALL_AFTER, silence) / TICKS  # seconds between two ticks
        self._ticking = False
        self._puts: dict[int, _Put] = {}  # by the id of the audience object
        self._groups: dict[frozenset[Member], Group] = {}  # the most recently used at the end

    def refer(self, member: Member, block: Block) -> bytes | None:
        """Return a reference to the member's block, or UNICAST. None: the member must wait until `wake` is called."""
        # The members of a put are chosen once, at its first block, so that all of them count on the same publications.
        # `audience` is one object for each put: two puts to the same peers are told apart by its identity.
        put = self._puts.get(id(block.audience)) or self._choose_members(block)
        if member not in put.members or len(put.members) < 2:
            return UNICAST
        group = self._groups.pop(put.members, None) or self._new_group(put.members)
        self._groups[put.members] = group
        reference = group.refer(member, block)
        self._schedule_tick()
        return reference

    def acked(self, member: Member, number: int) -> int:
        """Record that a member has processed its packets up to `number`; return the bytes of their largest block."""
        return max([group.acked(member, number) for group in self._groups.values()], default=0)

    def joined(self, member: Member, id: str) -> None:
        """Record that a client has subscribed to the group `id`."""
        for group in [group for group in self._groups.values() if group.id == id]:
            group.joined(member)

    def lost(self, member: Member) -> None:
        """Remove a link that is lost or stalls from the current puts. Their groups are replaced."""
        for put in self._puts.values():
            put.members -= {member}
        for members in [members for members in self._groups if member in members]:
            self._dissolve(members)

    def _choose_members(self, block: Block) -> _Put:
        members = frozenset(
            member
            for member in self._find(block.audience)
            if member.congestion.at_max_size or member.congestion.growing
        )
        if block.stream.nbytes < MIN_SIZE_TO_WAIT and not all(member.congestion.at_max_size for member in members):
            members = frozenset()
        put = self._puts[id(block.audience)] = _Put(block.audience, members)
        if len(self._puts) > _MAX_PUTS:
            del self._puts[next(iter(self._puts))]
        return put

    def _new_group(self, members: frozenset[Member]) -> Group:
        if len(self._groups) >= MAX_GROUPS:
            self._evict(next(iter(self._groups)))
        group = Group(members, self._publish)
        for member in members:
            member.send_control(PacketKind.JOIN, group.id)
        return group

    def _evict(self, members: frozenset[Member]) -> None:
        """Dissolve a group to make room for another. Its current puts continue by unicast.

        If they took a new group instead, more than MAX_GROUPS concurrent puts would replace each other's groups in
        turn, and send only JOIN and LEAVE.
        """
        for put in self._puts.values():
            if put.members == members:
                put.members = frozenset()
        self._dissolve(members)

    def _dissolve(self, members: frozenset[Member]) -> None:
        group = self._groups.pop(members)
        for member in members:
            member.send_control(PacketKind.LEAVE, group.id)
        group.wake()

    def _schedule_tick(self) -> None:
        if not self._ticking and any(group.waiting for group in self._groups.values()):
            self._ticking = True
            self._call_later(self._tick_interval, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        for member in [member for group in self._groups.values() for member in group.tick()]:
            self.lost(member)
        self._schedule_tick()
