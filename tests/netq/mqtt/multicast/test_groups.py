"""Groups with fake members, which record their commands, and ticks as plain calls."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from netq.mqtt import packet
from netq.mqtt.congestion import INITIAL_SIZE, CongestionControl
from netq.mqtt.multicast.group import TICKS, UNICAST, WINDOW, Block
from netq.mqtt.multicast.groups import _MAX_PUTS, MAX_GROUPS, MIN_SIZE_TO_WAIT, STALL_AFTER, Groups
from netq.mqtt.packet import PacketKind
from netq.mqtt.window import Window
from netq.utils.stream import Stream

SIZE = 100
MOST = 256 * 1024
FULL, SLOW = CongestionControl(INITIAL_SIZE), CongestionControl(MOST)
SLOW.growing = False


class FakeMember:
    """A member that records its commands."""

    def __init__(self) -> None:
        self.id = uuid.uuid4()
        self.window = Window(8)
        self.commands: list[tuple[PacketKind, str]] = []
        self.woken = 0
        self.congestion = FULL

    def send_control(self, kind: PacketKind, group: str) -> None:
        self.commands.append((kind, group))

    def wake(self) -> None:
        self.woken += 1

    @property
    def kinds(self) -> list[PacketKind]:
        return [kind for kind, _ in self.commands]


class Put:
    """A message for some members."""

    def __init__(self, world: World, members: list[FakeMember], stream: Stream | None = None) -> None:
        self.world = world
        self.members = members
        self.stream = stream or Stream([bytes(100 * SIZE)])
        self.audience = tuple(member.id for member in members)

    def refer(self, member: FakeMember, number: int) -> int | None:
        """Return the number of a block's reference; 0 for UNICAST, None if the member must wait."""
        block = Block(self.stream, number * SIZE, self.audience, [memoryview(b"block")])
        reference = self.world.groups.refer(member, block)
        if not reference:
            return None if reference is None else 0
        member.window.send()
        group, found, _ = packet.read_reference(
            packet.decode(packet.header(PacketKind.BLOCK, member.window.sent, 0, 0) + reference)
        )
        assert (PacketKind.JOIN, group) in member.commands
        return found

    def start(self) -> None:
        """Let the first member reach a block, and all members join."""
        assert self.refer(self.members[0], 0) is None
        self.world.join(self.members)


class World:
    """Members, their groups, and a message for all of them."""

    def __init__(self, count: int, silence: float = 10.0) -> None:
        self.members = [FakeMember() for _ in range(count)]
        self.published: list[tuple[str, bytes]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.groups = Groups(
            lambda audience: [member for member in self.members if member.id in audience],
            lambda group, payload: self.published.append((group, payload)),
            lambda pause, function: self.timers.append((pause, function)),
            silence,
        )
        self.put = self.new_put()

    def new_put(self, stream: Stream | None = None) -> Put:
        return Put(self, list(self.members), stream)

    def join(self, members: list[FakeMember]) -> None:
        for member in members:
            kind, group = member.commands[-1]
            assert kind is PacketKind.JOIN
            self.groups.joined(member, group)

    def acknowledge(self, *members: FakeMember) -> None:
        for member in members:
            self.groups.acked(member, member.window.sent)

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            timers, self.timers = self.timers, []
            for _, function in timers:
                function()

    def stall(self) -> None:
        self.tick(TICKS + 1)


def one_ahead() -> World:
    """Two members; the first has references to all blocks that may be outstanding."""
    world = World(2)
    world.put.start()
    for number in range(WINDOW):
        world.put.refer(world.members[0], number)
    return world


def test_block_is_published_once() -> None:
    world = World(3)
    world.put.start()
    assert world.members[0].woken == 1
    assert [world.put.refer(member, 0) for member in world.members] == [1, 1, 1]
    world.acknowledge(*world.members)
    assert world.put.refer(world.members[2], 1) == 2
    group = world.members[0].commands[0][1]
    assert world.published == [(group, packet.block(number) + b"block") for number in (1, 2)]


def test_ack_returns_the_largest_covered_block() -> None:
    world = World(2)
    world.put.start()
    one, other = world.members
    for number in range(2):
        world.put.refer(one, number)
    assert world.groups.acked(one, 0) == 0
    assert world.groups.acked(one, 2) == len(world.published[0][1])
    assert world.groups.acked(one, 2) == 0
    assert world.groups.acked(other, 5) == 0, "no packet of it refers to a block"


def test_members_stay_within_the_window() -> None:
    world = World(2)
    world.put.start()
    fast, slow = world.members
    assert [world.put.refer(fast, number) for number in range(WINDOW)] == list(range(1, WINDOW + 1))
    assert world.put.refer(fast, WINDOW) is None
    world.acknowledge(fast)
    assert world.put.refer(fast, WINDOW) is None
    assert world.put.refer(slow, 0) == 1
    woken = fast.woken
    world.acknowledge(slow)
    assert fast.woken == woken + 1
    assert world.put.refer(fast, WINDOW) == WINDOW + 1
    assert world.put.refer(fast, WINDOW + 1) is None


@pytest.mark.parametrize("comes", [True, False], ids=["silent", "absent"])
def test_stalled_member_continues_by_unicast(comes: bool) -> None:
    world = World(3)
    world.put.start()
    slow, *others = world.members
    if comes:
        world.put.refer(slow, 0)
    for number in range(WINDOW):
        for member in others:
            world.put.refer(member, number)
    world.acknowledge(*others)
    assert world.put.refer(others[0], WINDOW) is None
    world.tick(TICKS)
    assert all(member.kinds == [PacketKind.JOIN] for member in world.members)
    world.tick()
    assert all(member.kinds == [PacketKind.JOIN, PacketKind.LEAVE] for member in world.members)
    assert world.put.refer(slow, 1) == 0
    assert world.put.refer(others[0], WINDOW) is None
    world.join(others)
    assert [world.put.refer(member, WINDOW) for member in others] == [1, 1]
    assert slow.kinds == [PacketKind.JOIN, PacketKind.LEAVE]
    assert world.new_put().refer(slow, 0) is None, "it may try again with the next message"
    assert slow.kinds[-1] is PacketKind.JOIN


def test_progress_of_one_member_prevents_stalls() -> None:
    world = World(4)
    world.put.start()
    for number in range(WINDOW):
        for member in world.members:
            world.put.refer(member, number)
    assert world.put.refer(world.members[0], WINDOW) is None
    for member in world.members[:3]:
        world.tick(TICKS)
        world.acknowledge(member)
    world.tick(TICKS)
    assert all(member.kinds == [PacketKind.JOIN] for member in world.members)
    world.tick()
    assert world.put.refer(world.members[3], WINDOW) == 0
    assert world.put.refer(world.members[2], WINDOW) is None


def test_no_stall_while_no_member_waits() -> None:
    world = World(3)
    world.put.start()
    for member in world.members[:2]:
        world.put.refer(member, 0)
    world.acknowledge(world.members[0])
    world.tick()
    assert world.timers == [], "there is nothing to watch"
    world.stall()
    assert world.put.refer(world.members[2], 0) == 1
    assert all(member.kinds == [PacketKind.JOIN] for member in world.members)


def test_pause_between_messages_is_no_stall() -> None:
    world = one_ahead()
    one, other = world.members
    world.put.refer(one, WINDOW)
    world.tick(TICKS)
    assert world.put.refer(other, 0) == 1
    world.acknowledge(other)
    world.put.refer(one, WINDOW)
    world.put.refer(one, WINDOW + 1)
    world.tick(TICKS)
    assert other.kinds == [PacketKind.JOIN]


@pytest.mark.parametrize(("silence", "pause"), [(10.0, STALL_AFTER / TICKS), (0.4, 0.4 / TICKS)])
def test_tick_interval_follows_the_silence_limit(silence: float, pause: float) -> None:
    world = World(3, silence)
    world.put.refer(world.members[0], 0)
    assert [timer for timer, _ in world.timers] == [pause]
    world.put.refer(world.members[1], 0)
    assert len(world.timers) == 1


def test_late_joiners_continue_by_unicast() -> None:
    world = World(3)
    assert world.put.refer(world.members[0], 0) is None
    group = world.members[0].commands[0][1]
    for member in world.members[:2]:
        world.tick(TICKS)  # as long as others join, it may yet
        world.groups.joined(member, group)
    world.stall()
    assert world.put.refer(world.members[2], 0) == 0
    assert world.put.refer(world.members[0], 0) is None
    world.join(world.members[:2])
    assert [world.put.refer(member, 0) for member in world.members] == [1, 1, 0]


def test_all_continue_by_unicast_if_none_joins() -> None:
    world = World(3)
    assert [world.put.refer(member, 0) for member in world.members] == [None] * 3
    world.stall()
    assert all(member.woken == 1 for member in world.members)
    assert [world.put.refer(member, 0) for member in world.members] == [0] * 3


def test_lost_link_replaces_the_group() -> None:
    world = World(3)
    world.put.start()
    lost = world.members.pop()
    world.groups.lost(lost)
    assert [member.kinds for member in world.members] == [[PacketKind.JOIN, PacketKind.LEAVE]] * 2
    assert world.put.refer(world.members[0], 0) is None
    world.join(world.members)
    assert [world.put.refer(member, 0) for member in world.members] == [1, 1]


def test_next_link_of_a_client_continues_by_unicast() -> None:
    world = World(3)
    world.put.start()
    lost = world.members[2]
    world.members[2] = back = FakeMember()
    back.id = lost.id
    world.groups.lost(lost)
    assert world.put.refer(back, 1) == 0
    assert back.commands == []
    assert world.new_put().refer(back, 0) is None


def test_last_member_continues_by_unicast() -> None:
    world = World(2)
    world.put.start()
    world.groups.lost(world.members[1])
    assert world.put.refer(world.members[0], 0) == 0


def test_references_never_go_back() -> None:
    world = World(2)
    world.put.start()
    one, two = world.members
    other = world.new_put()
    assert world.put.refer(one, 0) == 1
    assert other.refer(one, 0) == 2
    assert other.refer(two, 0) == 2
    assert world.put.refer(two, 0) == 0
    world.acknowledge(two)
    assert world.put.refer(two, 0) == 0, "nor after it has passed the later one"


def test_reference_covers_earlier_blocks() -> None:
    world = one_ahead()
    one, two = world.members
    world.acknowledge(one)
    assert world.put.refer(one, WINDOW) is None
    assert world.put.refer(two, 5) == 6
    world.acknowledge(two)
    assert [world.put.refer(one, WINDOW + more) for more in range(7)] == [9, 10, 11, 12, 13, 14, None]


def test_single_member_has_no_group() -> None:
    world = World(1)
    assert world.put.refer(world.members[0], 0) == 0
    assert world.members[0].commands == []


def pairs(world: World) -> list[Put]:
    """Return puts to the first member and each of the others."""
    return [Put(world, [world.members[0], other]) for other in world.members[1:]]


def test_recently_used_groups_are_kept() -> None:
    world = World(MAX_GROUPS + 2)
    for put in pairs(world):
        put.start()
    assert world.members[1].kinds == [PacketKind.JOIN, PacketKind.LEAVE]
    assert all(member.kinds == [PacketKind.JOIN] for member in world.members[2:])
    Put(world, world.members[:3:2]).refer(world.members[0], 0)
    assert world.members[2].kinds == [PacketKind.JOIN], "the next put to the same clients has the same group"


def test_message_of_an_evicted_group_continues_by_unicast() -> None:
    world = World(MAX_GROUPS + 2)
    first, *others = pairs(world)
    for put in (first, *others):
        put.start()
    assert [first.refer(member, 1) for member in first.members] == [0, 0]
    assert all(put.members[1].kinds == [PacketKind.JOIN] for put in others)
    assert Put(world, first.members).refer(world.members[0], 0) is None


def test_growing_links_join_and_slow_ones_do_not() -> None:
    world = World(4)
    fast, other, new, slow = world.members
    new.congestion, slow.congestion = CongestionControl(MOST), SLOW
    put = world.new_put(Stream([bytes(MIN_SIZE_TO_WAIT)]))
    assert put.refer(fast, 2) is None
    assert slow.commands == []
    world.join([fast, other, new])
    assert put.refer(fast, 2) is None
    assert put.refer(slow, 2) == 0
    assert put.refer(new, 2) == 1
    assert fast.woken == 1
    assert put.refer(fast, 2) == 1


def test_link_that_does_not_grow_continues_by_unicast() -> None:
    world = World(3)
    *others, new = world.members
    new.congestion = CongestionControl(MOST)
    put = world.new_put(Stream([bytes(MIN_SIZE_TO_WAIT)]))
    assert put.refer(others[0], 2) is None
    world.join(world.members)
    world.stall()
    assert put.refer(others[0], 2) is None
    assert [member.kinds[-1] for member in world.members] == [PacketKind.JOIN, PacketKind.JOIN, PacketKind.LEAVE]


def test_small_message_does_not_wait_for_growing_links() -> None:
    world = World(2)
    fast, new = world.members
    new.congestion = CongestionControl(MOST)
    assert world.put.refer(fast, 0) == 0


def test_late_member_catches_up_by_unicast() -> None:
    world = World(2)
    world.put.start()
    first, second = world.members
    assert [world.put.refer(first, number) for number in (3, 4)] == [1, 2]
    assert [world.put.refer(second, number) for number in (1, 2)] == [0, 0]
    assert world.put.refer(second, 3) == 1


def test_reused_stream_is_a_new_message() -> None:
    world = World(3)
    slow, *others = world.members
    slow.congestion = SLOW
    assert world.put.refer(others[0], 0) is None
    world.join(others)
    assert [world.put.refer(member, 0) for member in others] == [1, 1]
    slow.congestion = FULL
    assert world.put.refer(slow, 1) == 0, "the message has its members"
    again = world.new_put(world.put.stream)
    assert again.refer(slow, 0) is None
    assert [member.commands[-1] for member in others] == [slow.commands[0]] * 2


def test_remembered_puts_are_bounded() -> None:
    world = World(2)
    world.put.start()
    puts = [world.new_put() for _ in range(10 * _MAX_PUTS)]
    for put in puts:
        put.refer(world.members[0], 0)
        world.groups.lost(world.members[0])
    assert len(world.groups._puts) == _MAX_PUTS
    assert world.put.refer(world.members[0], 0) is None, "a message that was forgotten begins again"


def test_unicast_differs_from_references() -> None:
    assert packet.reference("0" * 16, 0) != UNICAST
